"""The noise is Philox, the same everywhere, and looks like noise."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the sampler needs the extra [omnivoice]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from polychoir.kernels.noise import (  # noqa: E402
    CLASS,
    POSITION,
    NoiseKeys,
    philox,
    seed_words,
    stream_word,
    uniform,
)
from tests.support.philox import uniform as twin  # noqa: E402

KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Counter, key and result from the authors' Random123 distribution, philox4x32 with ten rounds."""


def keys(seed: int = 0, chunk: int = 0, attempt: int = 0, step: int = 0) -> NoiseKeys:
    values = (*seed_words(seed), stream_word(chunk, attempt), step)
    return NoiseKeys(*(torch.tensor(value) for value in values))


def grid(noise_keys: NoiseKeys, frames: int, codebooks: int, entries: int | None = None) -> np.ndarray:
    """[codebooks, frames] or [codebooks, frames, entries], as the twin orders it."""
    frame = torch.arange(frames)
    codebook = torch.arange(codebooks)[:, None]
    if entries is None:
        return uniform(noise_keys, POSITION, frame, codebook).numpy()
    entry = torch.arange(entries)
    return uniform(noise_keys, CLASS, frame[:, None], codebook[..., None], entry).numpy()


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    words = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(int(word) for word in words) == expected


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    chunk=st.integers(0, 2**24 - 1),
    attempt=st.integers(0, 255),
    step=st.integers(0, 127),
    entries=st.one_of(st.none(), st.integers(1, 1_025)),
)
def test_equals_its_twin(seed: int, chunk: int, attempt: int, step: int, entries: int | None) -> None:
    ours = grid(keys(seed, chunk, attempt, step), 3, 8, entries)
    assert ours.dtype == np.float32
    assert (ours == twin(seed, step, (8, 3, entries), chunk, attempt)).all()


def test_a_subset_has_the_same_numbers() -> None:
    """Only the kept entries are drawn; they must not depend on which others are."""
    everything = grid(keys(9), 5, 8, 1_025)
    entries = torch.tensor([1_024, 3, 700])
    some = uniform(keys(9), CLASS, torch.tensor(4), torch.tensor(6), entries)
    assert (some.numpy() == everything[6, 4, [1_024, 3, 700]]).all()


def test_every_coordinate_matters() -> None:
    base = grid(keys(1), 20, 8)
    for other in (keys(2), keys(1 + 2**32), keys(1, chunk=1), keys(1, attempt=1), keys(1, step=1)):
        assert np.mean(grid(other, 20, 8) == base) < 0.01
    assert np.mean(grid(keys(1), 20, 8, 2)[..., 0] == base) < 0.01


def test_it_looks_like_noise() -> None:
    """Moments, extremes and a chi-square over 64 bins: bounds are five standard errors wide."""
    u = grid(keys(1234), 200, 8, 1_025).astype(np.float64)
    n = u.size
    assert 0.0 <= u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1.0
    assert abs(u.mean() - 1 / 2) < 5 * np.sqrt(1 / 12 / n)
    assert abs(u.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / n)
    counts = np.histogram(u, bins=64, range=(0, 1))[0]
    chi_square = ((counts - n / 64) ** 2 / (n / 64)).sum()
    assert abs(chi_square - 63) < 5 * np.sqrt(2 * 63)


def test_neighbours_are_not_correlated() -> None:
    u = grid(keys(77), 400, 8, 512) - 0.5
    pairs = {
        "codebook": (u[1:], u[:-1]),
        "frame": (u[:, 1:], u[:, :-1]),
        "entry": (u[..., 1:], u[..., :-1]),
        "step": (u, grid(keys(77, step=1), 400, 8, 512) - 0.5),
        "seed": (u, grid(keys(78), 400, 8, 512) - 0.5),
        "chunk": (u, grid(keys(77, chunk=1), 400, 8, 512) - 0.5),
    }
    for name, (one, other) in pairs.items():
        correlation = float((one * other).mean() * 12)
        assert abs(correlation) < 5 / np.sqrt(one.size), name
