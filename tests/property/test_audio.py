"""Audio over any slicing and length."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polychoir.audio.encode import Encoder
from polychoir.audio.pcm import to_s16
from polychoir.audio.resample import resample, resampled_length
from polychoir.audio.stitch import Stitcher
from polychoir.types import AudioFormat

SIZES = st.lists(st.integers(0, 3_000), min_size=1, max_size=12)
RATES = st.sampled_from([8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000])


def noise(size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return (np.random.default_rng(size).standard_normal(size) * 0.3).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.sampled_from(["wav", "pcm", "flac", "mp3", "opus", "aac"]), st.booleans())
def test_slices_never_show(sizes: list[int], format: AudioFormat, streamed: bool) -> None:
    signal = noise(sum(sizes))
    whole, sliced = (Encoder(format, 24_000, streamed=streamed) for _ in range(2))
    pieces = [sliced.feed(piece) for piece in np.split(signal, np.cumsum(sizes)[:-1])]
    assert b"".join([*pieces, sliced.finish()]) == whole.feed(signal) + whole.finish()


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=50))
def test_conversion_saturates_and_stays_close(values: list[float]) -> None:
    signal = np.array(values, dtype=np.float32)
    back = to_s16(signal).astype(np.float64) / 32_768
    assert np.all(np.abs(back - np.clip(signal.astype(np.float64), -1.0, 32_767 / 32_768)) <= 0.5 / 32_768)


@settings(deadline=None)
@given(SIZES, RATES, RATES, st.randoms(use_true_random=False))
def test_stitching_any_arrival_is_resampling_the_whole(sizes, src, dst, random) -> None:  # type: ignore[no-untyped-def]
    chunks = list(enumerate(noise(size) for size in sizes))
    whole = resample(np.concatenate([chunk for _, chunk in chunks]), src, dst)
    random.shuffle(chunks)
    stitcher = Stitcher(len(chunks), src, dst)
    pieces = [piece for index, chunk in chunks for piece in stitcher.add(index, chunk)]
    joined = np.concatenate([*pieces, np.empty(0, np.float32)])
    assert stitcher.done and len(joined) == resampled_length(sum(sizes), src, dst)
    np.testing.assert_array_equal(joined, whole)
