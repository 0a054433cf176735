"""The tables that tell one step's kernels what is there: column names and the records that hold them.

A step is captured once for a bucket of N tokens, P positions and R rows; what is really there is read from
these tables on the device. All are contiguous int32 unless said. Entries past the counts in `header` are
never read.

Order of a step: the conditional run of every row, in order of rows, then the unconditional runs of the rows
that have guidance, packed end to end. The target positions of the rows follow each other in order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from torch import Tensor

BLOCK: Final = 64
"""Tokens of one block of the arena: token j of slot s is row blocks[s, j // BLOCK] * BLOCK + j % BLOCK."""
HEADER_WIDTH: Final = 8
ROW_WIDTH: Final = 8
RUN_WIDTH: Final = 4
ITEM_WIDTH: Final = 2


class Header(IntEnum):
    """How many entries of the step's tables count."""

    ROWS = 0
    TOKENS = 1
    POSITIONS = 2
    RUNS = 3
    ITEMS = 4


class Row(IntEnum):
    """A row of the step. Columns past the last name are unused."""

    SLOT = 0
    STEP = 1
    FRAMES = 2
    """Target frames, at least 1."""
    COND = 3
    """Packed index of the first target token of the conditional run."""
    UNCOND = 4
    """The same in the unconditional run; -1 for a row without guidance."""
    FIRST = 5
    """Index of the row's first position: the sum of FRAMES of the rows before."""


class Run(IntEnum):
    """A run of tokens that see each other."""

    START = 0
    """Packed index of its first token: the sum of LENGTH of the runs before."""
    LENGTH = 1
    SLOT = 2
    OFFSET = 3
    """Where the run begins within its slot: 0 if conditional, else the length of text and reference."""


class Item(IntEnum):
    """One tile of attention."""

    RUN = 0
    QUERY = 1
    """Its first query token, counted within the run."""


class Knob(IntEnum):
    """A row's settings, float32; 0 turns guidance or a temperature off."""

    GUIDANCE = 0
    POSITION_TEMPERATURE = 1
    CLASS_TEMPERATURE = 2
    LAYER_PENALTY = 3


class Key(IntEnum):
    """A row's noise, int64 holding unsigned 32-bit words; see `polychoir.kernels.noise`."""

    LOW = 0
    HIGH = 1
    STREAM = 2


@dataclass(frozen=True, slots=True)
class StepTables:
    """What one step is made of. Rewritten before each step, at fixed addresses.

    header: [8]. rows: [R, 8]. runs: [2R, 4]. items: [I, 2]. Columns are those of the enums above.
    """

    header: Tensor
    rows: Tensor
    runs: Tensor
    items: Tensor


@dataclass(frozen=True, slots=True)
class SlotTables:
    """What is kept of each of S resident rows for as long as it runs.

    arena: [T, codebooks], the tokens. An audio frame has its codes, the mask id where not revealed; a text
        token has -(id + 1) in column 0.
    blocks: [S, B], the arena's blocks of each slot, in order.
    knobs: float32 [S, 4]. keys: int64 [S, 3].
    timetable: [S, steps], cells to reveal at each step.
    sound: [S], 1; 0 once any score of the row was not finite, and then the row is never written again.
    """

    arena: Tensor
    blocks: Tensor
    knobs: Tensor
    keys: Tensor
    timetable: Tensor
    sound: Tensor
