"""Where running rows keep their tokens and settings on the device.

Everything a row needs goes up once, when it starts; from then on the device alone knows its canvas. A row's
tokens (text, reference, target) lie in blocks of the arena, so that rows of all lengths share it without
gaps worth speaking of. All tables have their full size from the start: captured graphs hold their addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polychoir.errors import InternalError
from polychoir.kernels.noise import seed_words, stream_word
from polychoir.kernels.tables import BLOCK, Key, Knob, SlotTables
from polychoir.models.omnivoice.row import OmniVoiceRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Codes = NDArray[np.int16]
    Index = NDArray[np.int64]

LONGEST_TIMETABLE = 128


@dataclass(frozen=True, slots=True)
class Slot:
    """A resident row. `serial` is never used twice: a row that starts again is another slot.

    where: int64 [row.cond_len], the arena row of each of its tokens.
    """

    serial: int
    number: int
    epoch: int
    row: OmniVoiceRow
    where: Index

    @property
    def canvas(self) -> Index:
        """Arena rows of its target frames."""
        return self.where[self.row.cond_len - self.row.target_frames :]


class SlotTable:
    """At most `limit` resident rows of at most `longest` tokens each, `tokens` together."""

    def __init__(
        self, *, codebooks: int, mask_id: int, limit: int, tokens: int, longest: int, device: torch.device
    ) -> None:
        self._mask_id = mask_id
        self._limit = limit
        self._slots: dict[int, Slot] = {}
        self._numbers = list(range(limit - 1, -1, -1))
        self._serial = 0
        blocks = -(-tokens // BLOCK) + limit  # every row may leave most of its last block empty
        self._free = np.arange(blocks)

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.tables = SlotTables(
            arena=zeros(blocks * BLOCK, codebooks),
            blocks=zeros(limit, -(-longest // BLOCK)),
            knobs=zeros(limit, len(Knob), dtype=torch.float32),
            keys=zeros(limit, len(Key), dtype=torch.int64),
            timetable=zeros(limit, LONGEST_TIMETABLE),
            sound=zeros(limit),
        )

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, seq_id: int) -> Slot | None:
        return self._slots.get(seq_id)

    def seat(self, seq_id: int, row: OmniVoiceRow, epoch: int) -> Slot:
        """Give the row a slot, a new one if it has one. Nothing is on the device before `upload`.

        Raises InternalError when there is no room: the engine let in more than the model's card allows.
        """
        self.drop(seq_id)
        needed = -(-row.cond_len // BLOCK)
        if not self._numbers or needed > min(self._free.size, self.tables.blocks.shape[1]):
            raise InternalError(f"no room for a row of {row.cond_len} tokens beside {len(self)} others")
        if len(row.timetable) > LONGEST_TIMETABLE:
            raise InternalError(f"a row of {len(row.timetable)} steps; at most {LONGEST_TIMETABLE} fit")
        blocks, self._free = self._free[:needed], self._free[needed:]
        where = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()[: row.cond_len]
        self._serial += 1
        slot = Slot(self._serial, self._numbers.pop(), epoch, row, where)
        self._slots[seq_id] = slot
        return slot

    def drop(self, seq_id: int) -> None:
        """Free the row's slot, if it has one."""
        slot = self._slots.pop(seq_id, None)
        if slot is None:
            return
        self._numbers.append(slot.number)
        self._free = np.concatenate((self._free, np.unique(slot.where // BLOCK)))

    @contextmanager
    def visitors(self) -> Iterator[None]:
        """Who is seated inside has left afterwards, and the next row gets the place it would have got."""
        slots, numbers, free = dict(self._slots), list(self._numbers), self._free
        try:
            yield
        finally:
            self._slots, self._numbers, self._free = slots, numbers, free

    def upload(self, seated: Sequence[tuple[Slot, Codes | None]]) -> None:
        """Write rows that start, nothing revealed: one set of transfers for all, none of them waited for.

        Each slot comes with the int16 [codebooks, row.ref_frames] codes of its reference, if it has one.
        """
        slots = [slot for slot, _ in seated]
        numbers = _send(np.array([slot.number for slot in slots]), self.tables.sound)
        where = _send(np.concatenate([slot.where for slot in slots]), self.tables.sound)
        tokens = np.concatenate([self._tokens(slot.row, codes) for slot, codes in seated])
        self.tables.arena[where] = _send(tokens, self.tables.arena)
        blocks = _padded([slot.where[::BLOCK] // BLOCK for slot in slots], self.tables.blocks.shape[1])
        self.tables.blocks[numbers] = _send(blocks, self.tables.blocks)
        self.tables.timetable[numbers] = _send(
            _padded([slot.row.timetable for slot in slots], LONGEST_TIMETABLE), self.tables.timetable
        )
        self.tables.knobs[numbers] = _send(np.array([_knobs(s.row) for s in slots], np.float32), numbers)
        self.tables.keys[numbers] = _send(np.array([_keys(slot.row) for slot in slots]), numbers)
        self.tables.sound[numbers] = 1

    def take(self, slots: Sequence[Slot]) -> tuple[list[Tensor], Tensor]:
        """What rows at their end have made, still on the device: int32 [frames, codebooks] codes of each, and
        int32 [rows], 0 where a score was not finite. Slots may be freed right after."""
        where = _send(np.concatenate([slot.canvas for slot in slots]), self.tables.arena)
        codes = self.tables.arena[where]
        sound = self.tables.sound[_send(np.array([slot.number for slot in slots]), self.tables.sound)]
        return list(torch.split(codes, [slot.row.target_frames for slot in slots])), sound

    def _tokens(self, row: OmniVoiceRow, reference: Codes | None) -> NDArray[np.int32]:
        """int32 [cond_len, codebooks] as the arena holds them."""
        tokens = np.full((row.cond_len, self.tables.arena.shape[1]), self._mask_id, np.int32)
        text = len(row.text_ids)
        tokens[:text] = 0
        tokens[:text, 0] = -(np.asarray(row.text_ids) + 1)
        if reference is not None:
            tokens[text : text + row.ref_frames] = reference.T
        return tokens


def _knobs(row: OmniVoiceRow) -> tuple[float, float, float, float]:
    return (
        row.guidance_scale,
        row.position_temperature,
        row.class_temperature,
        row.layer_penalty_factor,
    )


def _keys(row: OmniVoiceRow) -> tuple[int, int, int]:
    return (*seed_words(row.seed), stream_word(row.chunk, row.attempt))


def _padded(lists: Sequence[Sequence[int] | Index], width: int) -> NDArray[np.int32]:
    table = np.zeros((len(lists), width), np.int32)
    for line, values in zip(table, lists, strict=True):
        line[: len(values)] = values
    return table


def _send(values: NDArray[np.generic], beside: Tensor) -> Tensor:
    """To the device of `beside` without waiting: from pinned memory, which a copy engine reads by itself."""
    there = torch.from_numpy(values)
    if beside.device.type == "cpu":
        return there
    return there.pin_memory().to(beside.device, non_blocking=True)
