"""The packed decoder on the CPU beside transformers' own: each item as if it were alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from polychoir.kernels import plain_codec
from polychoir.models.omnivoice import decoder as decoder_module
from polychoir.models.omnivoice.codec import Codec
from polychoir.models.omnivoice.decoder import Decoder, fold
from polychoir.models.omnivoice.packed_decode import groups
from tests.parity.driving import make_codec

TOLERANCE = 1e-4
"""As between batch sizes of the published decoder: float32 sums in another order, through 36 convolutions."""
LENGTHS = (7, 1, 20, 3, 2, 33)
SAMPLES = 960


@pytest.fixture(scope="module")
def codec(checkpoint_dir: Path) -> Codec:
    return make_codec(checkpoint_dir)


@pytest.fixture(scope="module")
def decoder(codec: Codec) -> Decoder:
    return Decoder(fold(codec._model, torch.float32), plain_codec)


@pytest.fixture(scope="module")
def items() -> list[np.ndarray]:
    draw = np.random.default_rng(5)
    return [draw.integers(0, 1_024, (8, frames)).astype(np.int16) for frames in LENGTHS]


def run(decoder: Decoder, items: list[np.ndarray], frames: int) -> list[np.ndarray]:
    lines, starts = decoder.lines(items, frames)
    samples = decoder.forward(torch.from_numpy(lines)).numpy()
    assert samples.shape == (frames * SAMPLES,)
    return [
        samples[start * SAMPLES : (start + codes.shape[1]) * SAMPLES]
        for start, codes in zip(starts, items, strict=True)
    ]


def worst(some: list[np.ndarray], others: list[np.ndarray]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(some, others, strict=True))


def test_packed_as_the_published_decoder(codec: Codec, decoder: Decoder, items: list[np.ndarray]) -> None:
    published = codec.decode(items)
    assert min(np.abs(wave).max() for wave in published) > 0.05
    assert worst(run(decoder, items, 100), published) < TOLERANCE


def test_packed_as_alone_and_as_in_any_company(decoder: Decoder, items: list[np.ndarray]) -> None:
    alone = [run(decoder, [codes], codes.shape[1])[0] for codes in items]
    assert worst(run(decoder, items, 86), alone) < TOLERANCE
    assert worst(run(decoder, items[::-1], 128)[::-1], alone) < TOLERANCE


def test_without_gaps_neighbours_are_heard(
    decoder: Decoder, items: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tolerance would not hide a neighbour, nor the end of the pack."""
    alone = [run(decoder, [codes], codes.shape[1])[0] for codes in items]
    for gap in (0, 3):
        monkeypatch.setattr(decoder_module, "GAP_FRAMES", gap)
        assert worst(run(decoder, items, 86), alone) > 10 * TOLERANCE


def test_what_a_snake_leaves_in_a_gap_would_be_heard(
    decoder: Decoder, items: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [run(decoder, [codes], codes.shape[1])[0] for codes in items]
    masked = plain_codec.snake
    monkeypatch.setattr(plain_codec, "snake", lambda x, curve, live: masked(x, curve, live.fill_(1)))
    assert worst(run(decoder, items, 86), alone) > 10 * TOLERANCE


@pytest.mark.parametrize(
    ("lengths", "largest", "expected"),
    [
        ([5], 10, [[5]]),
        ([50], 10, [[50]]),
        ([3, 3, 3], 10, [[3, 3], [3]]),
        ([3, 3, 3], 17, [[3, 3, 3]]),
        ([3, 3, 3], 16, [[3, 3], [3]]),
        ([50, 3, 3, 50], 10, [[50], [3, 3], [50]]),
    ],
)
def test_groups(lengths: list[int], largest: int, expected: list[list[int]]) -> None:
    items = [np.zeros((8, length), np.int16) for length in lengths]
    assert [[codes.shape[1] for codes in group] for group in groups(items, largest)] == expected
