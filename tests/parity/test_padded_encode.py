"""The encoder with padding behind the clips beside transformers' own of each alone: the same codes.

In float64: in float32 about one clip in a thousand has a frame whose two nearest codes are equally far to
the last bit, and sums in another order then choose the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polychoir.models.omnivoice import encoder as encoder_module
from polychoir.models.omnivoice.codec import Codec
from polychoir.models.omnivoice.encoder import PaddedEncoder, can_pad
from tests.parity.driving import make_codec

SAMPLES = 960
HEARD_TOLERANCE = 1e-4
"""Of values around one: the resampler's last taps."""


@pytest.fixture(scope="module")
def codec(checkpoint_dir: Path) -> Codec:
    codec = make_codec(checkpoint_dir)
    codec._model.double()
    return codec


def clip(frames: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng((frames, seed))
    return draw.standard_normal(SAMPLES * frames).astype(np.float32) * 0.1


def padded_codes(codec: Codec, clips: Sequence[np.ndarray], frames: int) -> list[np.ndarray]:
    """Encoded together, each at the front of so many frames, with something loud behind it."""
    wave = np.random.default_rng(1).uniform(-50, 50, (len(clips), 1, SAMPLES * frames))
    for place, samples in enumerate(clips):
        wave[place, 0, : samples.size] = samples
    own = [samples.size // SAMPLES for samples in clips]
    codes = PaddedEncoder(codec._model).forward(torch.from_numpy(wave), torch.tensor(own))
    assert codes.shape == (len(clips), 8, frames)
    return [one[:, :count].numpy() for one, count in zip(codes, own, strict=True)]


def equal(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> bool:
    return all((one == other).all() for one, other in zip(ours, theirs, strict=True))


def alone(codec: Codec, clips: Sequence[np.ndarray]) -> list[np.ndarray]:
    """By transformers' own encoder, unpadded."""
    found = []
    for samples in clips:
        wave = torch.from_numpy(samples)[None, None].to(codec._model.dtype)
        with torch.inference_mode():
            found.append(codec._model.encode(wave).audio_codes[0].numpy())
    return found


@pytest.mark.parametrize("padding", [0, 1, 14, 40])
@pytest.mark.parametrize("frames", [13, 25, 26, 61])
def test_padding_changes_no_code(codec: Codec, frames: int, padding: int) -> None:
    clips = [clip(frames)]
    assert equal(padded_codes(codec, clips, frames + padding), alone(codec, clips))


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=2, max_size=8),
    padding=st.integers(0, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_clips_of_mixed_lengths_have_the_codes_they_have_alone(
    codec: Codec, lengths: list[int], padding: int, seed: int
) -> None:
    clips = [clip(frames, seed + place) for place, frames in enumerate(lengths)]
    assert equal(padded_codes(codec, clips, max(lengths) + padding), alone(codec, clips))


def test_a_neighbour_changes_no_code(codec: Codec) -> None:
    """However loud, silent or short it is."""
    mine = clip(40)
    expected = alone(codec, [mine])
    for other in (clip(70) * 1e3, np.zeros(SAMPLES * 40, np.float32), clip(1)):
        assert equal(padded_codes(codec, [other, mine, other], 75)[1:2], expected)


def test_the_semantic_half_hears_only_the_clip(codec: Codec) -> None:
    """Closer than codes can tell: a resampler's last taps past the end are too little to change one."""
    clips = [clip(25).astype(np.float64), clip(40).astype(np.float64)]
    wave = torch.zeros(2, 1, SAMPLES * 65, dtype=torch.float64)
    for place, samples in enumerate(clips):
        wave[place, 0, : samples.size] = torch.from_numpy(samples)
    with torch.inference_mode():
        together = PaddedEncoder(codec._model)._hear(wave, torch.tensor([25, 40])[:, None, None])
        for heard, samples in zip(together, clips, strict=True):
            (expected,) = codec._model._extract_semantic_features(torch.from_numpy(samples)[None, None])
            np.testing.assert_allclose(heard.T[: expected.shape[0]], expected, atol=HEARD_TOLERANCE)


def test_the_codec_gives_each_clip_its_own_in_their_order(checkpoint_dir: Path) -> None:
    codec = make_codec(checkpoint_dir)
    clips = [clip(frames, seed) for seed, frames in enumerate((30, 13, 30, 61, 13))]
    together = codec.encode([np.concatenate((samples, samples[:seed])) for seed, samples in enumerate(clips)])
    assert equal(together, alone(codec, clips))
    assert all(codes.base is None for codes in together)
    assert codec.encode([]) == []


@pytest.mark.parametrize("part", ["_kept", "_norm_over_time"])
def test_what_keeps_the_padding_out_is_needed(
    codec: Codec, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = [clip(25), clip(65)]
    expected = alone(codec, clips)
    if part == "_kept":
        monkeypatch.setattr(encoder_module, part, lambda x, length: x)
    else:
        whole = encoder_module._norm_over_time
        monkeypatch.setattr(
            encoder_module, part, lambda x, length, norm: whole(x, torch.tensor(x.shape[-1]), norm)
        )
    short, full = padded_codes(codec, clips, 65)
    assert (short != expected[0]).any()
    assert (full == expected[1]).all()


def test_another_make_of_the_semantic_model_is_left_alone(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert can_pad(codec._model)
    monkeypatch.setattr(codec._model.config.semantic_model_config, "do_stable_layer_norm", True)
    assert not can_pad(codec._model)
