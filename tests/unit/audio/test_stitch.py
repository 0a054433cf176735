"""Order restored, nothing lost at the seams, nonsense refused."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from polychoir.audio.resample import resample
from polychoir.audio.stitch import Stitcher
from polychoir.errors import InternalError

CHUNKS = [
    np.random.default_rng(i).standard_normal(size).astype(np.float32)
    for i, size in enumerate([700, 1, 0, 2_205])
]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_any_order_of_arrival_gives_one_signal(order: tuple[int, ...]) -> None:
    stitcher = Stitcher(4, 22_050, 24_000)
    pieces = []
    for index in order:
        assert not stitcher.done
        pieces += stitcher.add(index, CHUNKS[index])
    assert stitcher.done
    np.testing.assert_array_equal(np.concatenate(pieces), resample(np.concatenate(CHUNKS), 22_050, 24_000))


def test_what_is_next_leaves_at_once() -> None:
    stitcher = Stitcher(3, 24_000, 24_000)
    assert stitcher.add(1, CHUNKS[1]) == []
    assert [len(piece) for piece in stitcher.add(0, CHUNKS[0])] == [700, 1]
    assert [len(piece) for piece in stitcher.add(2, CHUNKS[3])] == [2_205]


def test_a_seam_inside_a_tone_cannot_be_found() -> None:
    """A tone cut in two at 16 kHz has no jump at 24 kHz beyond the tone's own slope."""
    tone = np.sin(2 * np.pi * 200 * np.arange(16_000) / 16_000).astype(np.float32)
    stitcher = Stitcher(2, 16_000, 24_000)
    joined = np.concatenate([*stitcher.add(0, tone[:7_777]), *stitcher.add(1, tone[7_777:])])
    assert len(joined) == 24_000
    assert np.abs(np.diff(joined[1_000:-1_000])).max() < 1.01 * 2 * np.pi * 200 / 24_000


@pytest.mark.parametrize("index", [-1, 0, 2])
def test_a_chunk_twice_or_out_of_range_is_a_bug(index: int) -> None:
    stitcher = Stitcher(2, 24_000, 24_000)
    stitcher.add(0, CHUNKS[0])
    with pytest.raises(InternalError, match=f"chunk {index}"):
        stitcher.add(index, CHUNKS[0])


def test_a_waiting_chunk_twice_is_a_bug() -> None:
    stitcher = Stitcher(3, 24_000, 24_000)
    stitcher.add(1, CHUNKS[0])
    with pytest.raises(InternalError):
        stitcher.add(1, CHUNKS[0])
