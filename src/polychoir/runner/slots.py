"""Where running rows keep their tokens on the device.

The arena is a table of frames, one column of codes each. A row takes any free frames, for its reference
and for its canvas, so that rows of all lengths share it without gaps. It grows by doubling; what bounds it
is the number of slots times the longest row a model lets in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polychoir.errors import InternalError
from polychoir.models.omnivoice.row import OmniVoiceRow
from polychoir.runner.packing import Seat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Codes = NDArray[np.int16]
    Index = NDArray[np.int64]

_FIRST_FRAMES = 4_096


@dataclass(frozen=True, slots=True)
class Slot:
    """A resident row. `serial` is never used twice: a row that starts again is another slot."""

    serial: int
    number: int
    epoch: int
    seat: Seat


class SlotTable:
    """At most `limit` resident rows."""

    def __init__(self, codebooks: int, mask_id: int, limit: int, device: torch.device) -> None:
        self._mask_id = mask_id
        self._limit = limit
        self._slots: dict[int, Slot] = {}
        self._numbers = list(range(limit - 1, -1, -1))
        self._serial = 0
        self._free = np.arange(_FIRST_FRAMES)
        self.arena = torch.zeros(_FIRST_FRAMES, codebooks, dtype=torch.int64, device=device)
        """int64 [frames, codebooks]."""
        self.sound = torch.ones(limit, dtype=torch.bool, device=device)
        """bool [limit]: False once any score of the slot's row was not finite."""

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, seq_id: int) -> Slot | None:
        return self._slots.get(seq_id)

    def start(self, seq_id: int, row: OmniVoiceRow, reference: Codes | None, epoch: int) -> Slot:
        """Give the row a slot with nothing revealed, a new one if it has one.

        reference: int16 [codebooks, row.ref_frames]. Raises InternalError when all slots are taken.
        """
        self.drop(seq_id)
        if not self._numbers:
            raise InternalError(f"all {self._limit} slots are taken: the engine admitted too many rows")
        seat = Seat(row, self._take(row.ref_frames), self._take(row.target_frames))
        self._serial += 1
        slot = Slot(self._serial, self._numbers.pop(), epoch, seat)
        self._slots[seq_id] = slot
        self.sound[slot.number] = True
        self.arena[self._index(seat.canvas)] = self._mask_id
        if reference is not None:
            codes = torch.from_numpy(reference.T.astype(np.int64)).to(self.arena.device)
            self.arena[self._index(seat.reference)] = codes
        return slot

    def drop(self, seq_id: int) -> None:
        """Free the row's slot, if it has one."""
        slot = self._slots.pop(seq_id, None)
        if slot is None:
            return
        self._numbers.append(slot.number)
        self._free = np.concatenate((self._free, slot.seat.reference, slot.seat.canvas))

    def canvases(self, slots: list[Slot]) -> list[Codes]:
        """Codes [codebooks, frames] of each slot, on the host: one transfer for all."""
        frames = np.concatenate([slot.seat.canvas for slot in slots])
        codes = self.arena[self._index(frames)].to("cpu", torch.int16).numpy()
        ends = np.cumsum([slot.seat.canvas.size for slot in slots])
        return [np.ascontiguousarray(part.T) for part in np.split(codes, ends[:-1])]

    def soundness(self, slots: list[Slot]) -> list[bool]:
        """Whether every score of each slot's row has been finite so far."""
        numbers = torch.tensor([slot.number for slot in slots], device=self.sound.device)
        return [bool(value) for value in self.sound[numbers].tolist()]

    def _take(self, count: int) -> Index:
        while count > self._free.size:
            self._grow()
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _grow(self) -> None:
        old = self.arena.shape[0]
        self.arena = torch.cat((self.arena, torch.zeros_like(self.arena)))
        self._free = np.concatenate((self._free, np.arange(old, 2 * old)))

    def _index(self, frames: Index) -> Tensor:
        return torch.from_numpy(frames).to(self.arena.device)
