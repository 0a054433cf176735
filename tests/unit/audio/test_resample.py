"""Lengths to the sample, whole equals pieces, and a tone stays the tone."""

from __future__ import annotations

import numpy as np
import pytest

from polychoir.audio.resample import Resampler, resample, resampled_length

RATES = [
    (8_000, 24_000),
    (16_000, 24_000),
    (22_050, 24_000),
    (44_100, 24_000),
    (24_000, 8_000),
    (24_000, 44_100),
]


@pytest.mark.parametrize(("src", "dst"), RATES)
@pytest.mark.parametrize("length", [0, 1, 2, 100, 24_001])
def test_the_length_is_exact(src: int, dst: int, length: int) -> None:
    assert len(resample(np.ones(length, np.float32), src, dst)) == round(length * dst / src + 1e-9)


@pytest.mark.parametrize(("src", "dst"), RATES)
def test_a_tone_stays_the_tone(src: int, dst: int) -> None:
    """Half a second of 1 kHz equals the same tone made at the other rate, away from the ends."""
    made = resample(np.sin(2 * np.pi * 1_000 * np.arange(src) / src).astype(np.float32), src, dst)
    wanted = np.sin(2 * np.pi * 1_000 * np.arange(dst) / dst)
    inner = slice(dst // 4, 3 * dst // 4)
    np.testing.assert_allclose(made[inner], wanted[inner], atol=2e-5)


@pytest.mark.parametrize(("src", "dst"), RATES)
def test_pieces_equal_the_whole(src: int, dst: int) -> None:
    signal = np.random.default_rng(1).standard_normal(src).astype(np.float32)
    resampler = Resampler(src, dst)
    pieces = [resampler.feed(piece) for piece in np.split(signal, [1, 17, 900, 901, 8_000 - 1])]
    np.testing.assert_array_equal(np.concatenate([*pieces, resampler.finish()]), resample(signal, src, dst))


def test_equal_rates_change_nothing() -> None:
    signal = np.random.default_rng(2).standard_normal(1_000).astype(np.float32)
    np.testing.assert_array_equal(resample(signal, 24_000, 24_000), signal)


def test_length_rounds_half_up() -> None:
    assert [resampled_length(n, 48_000, 24_000) for n in range(5)] == [0, 1, 1, 2, 2]
