"""Where the rows of one step lie among its packed tokens: arithmetic on the host, nothing of the device.

Order of the runs: the conditional run of every row (text, reference, target), then the unconditional runs
(target alone) of the rows that have guidance. Nothing is padded. The result depends on which rows there are,
not on their steps, so it is kept while nobody joins or leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from polychoir.kernels.tables import ROW_WIDTH, RUN_WIDTH, Row, Run
from polychoir.runner.slots import Slot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Index = NDArray[np.int64]


@dataclass(frozen=True)
class Packing:
    """rows: int32 [R, 8] and runs: int32 [M, 4], in the columns of kernels/tables.py; steps are not in them.

    tokens: packed tokens of all runs. positions: target frames of all rows.
    """

    slots: tuple[Slot, ...]
    rows: NDArray[np.int32]
    runs: NDArray[np.int32]

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def positions(self) -> int:
        return int(self.rows[:, Row.FRAMES].sum())

    @property
    def lengths(self) -> NDArray[np.int32]:
        """int32 [M], tokens of each run."""
        return self.runs[:, Run.LENGTH]

    # -- index lists for plain torch, made when they are asked for -------------------------------

    @cached_property
    def source(self) -> Index:
        """int64 [tokens], the arena row of each packed token."""
        unconditional = [slot.canvas for slot in self.slots if slot.row.uncond_len]
        return np.concatenate([slot.where for slot in self.slots] + unconditional)

    @cached_property
    def position(self) -> Index:
        """int64 [tokens], from 0 in each run."""
        return _counted(self.lengths)

    @cached_property
    def row_of(self) -> Index:
        """int64 [positions], the row of each."""
        return np.repeat(np.arange(len(self.slots)), self.rows[:, Row.FRAMES])

    @cached_property
    def frame(self) -> Index:
        """int64 [positions], the frame of each within its row."""
        return _counted(self.rows[:, Row.FRAMES])

    @cached_property
    def guided(self) -> Index:
        """int64 [G], the positions whose row has an unconditional run."""
        return np.flatnonzero(self.rows[self.row_of, Row.UNCOND] >= 0)

    @cached_property
    def targets(self) -> Index:
        """int64 [positions + G], the packed token of each conditional position, then of the others."""
        cond = self.rows[self.row_of, Row.COND] + self.frame
        uncond = self.rows[self.row_of, Row.UNCOND] + self.frame
        return np.concatenate((cond, uncond[self.guided]))


def pack(slots: Sequence[Slot]) -> Packing:
    """Lay out one step of these rows. At least one row."""
    cond = np.array([slot.row.cond_len for slot in slots])
    frames = np.array([slot.row.target_frames for slot in slots])
    numbers = np.array([slot.number for slot in slots])
    guided = np.flatnonzero([slot.row.uncond_len > 0 for slot in slots])
    lengths = np.concatenate((cond, frames[guided]))
    starts = np.cumsum(lengths) - lengths

    rows = np.zeros((len(slots), ROW_WIDTH), np.int32)
    rows[:, Row.SLOT] = numbers
    rows[:, Row.FRAMES] = frames
    rows[:, Row.COND] = starts[: len(slots)] + cond - frames
    rows[:, Row.UNCOND] = -1
    rows[guided, Row.UNCOND] = starts[len(slots) :]
    rows[:, Row.FIRST] = np.cumsum(frames) - frames

    runs = np.zeros((len(lengths), RUN_WIDTH), np.int32)
    runs[:, Run.START] = starts
    runs[:, Run.LENGTH] = lengths
    runs[:, Run.SLOT] = np.concatenate((numbers, numbers[guided]))
    runs[len(slots) :, Run.OFFSET] = (cond - frames)[guided]
    return Packing(tuple(slots), rows, runs)


def split(slots: Sequence[Slot], *, tokens: int, rows: int) -> Iterator[slice]:
    """Cut a step into neighbours of at most so many tokens and rows; a row with more tokens is alone."""
    first, held = 0, 0
    for number, slot in enumerate(slots):
        full = held + slot.row.tokens > tokens or number - first == rows
        if full and number > first:
            yield slice(first, number)
            first, held = number, 0
        held += slot.row.tokens
    yield slice(first, len(slots))


def _counted(counts: NDArray[np.int32]) -> Index:
    """0, 1, ... anew for each of the counts, end to end."""
    total = np.arange(int(counts.sum()))
    return total - np.repeat(np.cumsum(counts) - counts, counts)
