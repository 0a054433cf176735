"""A step of random rows as the device sees it: tables, arena, logits. Needs torch alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from polychoir.kernels.tables import BLOCK, Knob, SlotTables, StepTables

CODEBOOKS = 8
POISON = -77_777


@dataclass(frozen=True)
class TestRow:
    """A row in the middle of its life. masked: share of its cells that are not revealed yet."""

    __test__ = False

    frames: int
    prefix: int = 3
    guidance: float = 2.0
    position_temperature: float = 5.0
    class_temperature: float = 0.0
    layer_penalty: float = 5.0
    masked: float = 0.6
    step: int = 3
    reveal: int = 9


@dataclass(frozen=True)
class Situation:
    """Everything a step's kernels read and write. tokens, positions: what is there of the capacity."""

    step: StepTables
    slots: SlotTables
    source: Tensor
    position: Tensor
    cell_row: Tensor
    logits: Tensor
    token: Tensor
    score: Tensor
    tokens: int
    positions: int

    def copy(self) -> Situation:
        """The same with outputs and slots of its own."""
        slots = SlotTables(
            self.slots.arena.clone(),
            self.slots.blocks,
            self.slots.knobs,
            self.slots.keys,
            self.slots.timetable,
            self.slots.sound.clone(),
        )
        outputs = (x.clone() for x in (self.source, self.position, self.cell_row))
        return Situation(
            self.step,
            slots,
            *outputs,
            self.logits,
            self.token.clone(),
            self.score.clone(),
            self.tokens,
            self.positions,
        )


def situation(
    rows: Sequence[TestRow],
    generator: torch.Generator,
    *,
    vocabulary: int = 33,
    dtype: torch.dtype = torch.float32,
    spare: int = 5,
    capacity: int | None = None,
    device: torch.device | str = "cpu",
) -> Situation:
    """Random tokens, logits, keys; slots in random order, their blocks scattered over the arena.

    spare: unused tokens and positions at the ends of the tables. capacity: rows there is place for, `spare`
    more than there are if not given. All that is unused is poisoned.
    The generator is one of the CPU, so that a seed means the same everywhere.
    """
    numbers = torch.randperm(len(rows) + 3, generator=generator)[: len(rows)].tolist()
    slots = _slots(rows, numbers, generator, vocabulary)
    cond = [row.prefix + row.frames for row in rows]
    guided = [index for index, row in enumerate(rows) if row.guidance]
    lengths = cond + [rows[index].frames for index in guided]
    starts = [0, *accumulate(lengths)]
    uncond = dict(zip(guided, starts[len(rows) : -1], strict=True))
    first = [0, *accumulate(row.frames for row in rows)]
    positions, tokens = first[-1], starts[-1]
    capacity = len(rows) + spare if capacity is None else capacity
    row_table = torch.full((capacity, 8), POISON, dtype=torch.int32)
    for index, row in enumerate(rows):
        target = starts[index] + row.prefix
        row_table[index, :6] = torch.tensor(
            [numbers[index], row.step, row.frames, target, uncond.get(index, -1), first[index]]
        )
    runs = torch.full((2 * capacity, 4), POISON, dtype=torch.int32)
    owners = [*range(len(rows)), *guided]
    for index, (owner, length) in enumerate(zip(owners, lengths, strict=True)):
        offset = 0 if index < len(rows) else rows[owner].prefix
        runs[index] = torch.tensor([starts[index], length, numbers[owner], offset])
    header = torch.tensor([len(rows), tokens, positions, len(lengths), 0, 0, 0, 0], dtype=torch.int32)
    step = StepTables(
        header.to(device),
        row_table.to(device),
        runs.to(device),
        torch.zeros(1, 2, dtype=torch.int32).to(device),
    )
    device_generator = torch.Generator(device).manual_seed(int(torch.randint(2**31, (), generator=generator)))
    logits = torch.randn(
        positions + spare, CODEBOOKS * vocabulary, generator=device_generator, device=device
    ).mul_(3)

    def poisoned(*shape: int) -> Tensor:
        return torch.full(shape, POISON, dtype=torch.int32, device=device)

    return Situation(
        step=step,
        slots=SlotTables(*(table.to(device) for table in slots)),
        source=poisoned(tokens + spare),
        position=poisoned(tokens + spare),
        cell_row=poisoned(positions + spare),
        logits=logits.to(dtype),
        token=poisoned(positions + spare, CODEBOOKS),
        score=torch.full((positions + spare, CODEBOOKS), float("nan"), device=device),
        tokens=tokens,
        positions=positions,
    )


def _slots(
    rows: Sequence[TestRow], numbers: Sequence[int], generator: torch.Generator, vocabulary: int
) -> tuple[Tensor, ...]:
    """arena, blocks, knobs, keys, timetable, sound."""
    mask_id, count = vocabulary - 1, len(rows) + 3
    needed = [-(-(row.prefix + row.frames) // BLOCK) for row in rows]
    free = iter(torch.randperm(sum(needed) + 2, generator=generator).tolist())
    arena = torch.full(((sum(needed) + 2) * BLOCK, CODEBOOKS), POISON, dtype=torch.int32)
    blocks = torch.full((count, max(needed)), POISON, dtype=torch.int32)
    knobs = torch.full((count, len(Knob)), float("nan"))
    keys = torch.randint(2**32, (count, 3), generator=generator)
    timetable = torch.full((count, 128), POISON, dtype=torch.int32)
    for row, number, blocks_needed in zip(rows, numbers, needed, strict=True):
        own = torch.tensor([next(free) for _ in range(blocks_needed)])
        blocks[number, :blocks_needed] = own.int()
        places = (own[:, None] * BLOCK + torch.arange(BLOCK)).reshape(-1)[row.prefix :][: row.frames]
        codes = torch.randint(mask_id, (row.frames, CODEBOOKS), generator=generator, dtype=torch.int32)
        hidden = torch.rand(codes.shape, generator=generator) < row.masked
        arena[places] = codes.masked_fill(hidden, mask_id)
        knobs[number] = torch.tensor(
            [row.guidance, row.position_temperature, row.class_temperature, row.layer_penalty]
        )
        timetable[number, row.step] = row.reveal
    return arena, blocks, knobs, keys, timetable, torch.ones(count, dtype=torch.int32)
