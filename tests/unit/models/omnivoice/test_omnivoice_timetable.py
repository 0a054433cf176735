from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polychoir.models.omnivoice.timetable import timetable


@given(frames=st.integers(1, 3000), num_step=st.integers(1, 128), t_shift=st.floats(0.01, 10))
def test_every_cell_is_revealed_once_and_every_step_lives(frames: int, num_step: int, t_shift: float) -> None:
    counts = timetable(frames, num_step, t_shift)
    assert sum(counts) == 8 * frames
    assert min(counts) >= 1
    assert len(counts) <= num_step


@given(frames=st.integers(1, 500))
def test_one_step_takes_all(frames: int) -> None:
    assert timetable(frames, 1, 0.1) == (8 * frames,)


def test_a_short_row_ends_early() -> None:
    """One frame has 8 cells: with one a step at the slow beginning it cannot fill 32 steps."""
    assert timetable(1, 32, 0.1) == (1,) * 8


@pytest.mark.parametrize("num_step", [2, 8, 32])
def test_a_shift_below_one_leaves_most_for_late(num_step: int) -> None:
    early, even = timetable(200, num_step, 0.1), timetable(200, num_step, 1.0)
    assert early[0] < even[0]
    assert early[-1] > even[-1]
