"""One step in plain torch, launched operation by operation: every device and number format.

The order of operations is the published model's, so this is also what the fused step is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polychoir.kernels.attention import Runs, make_runs
from polychoir.kernels.noise import NoiseKeys
from polychoir.kernels.reference import SampleLayout, SampleParams, sample_step
from polychoir.kernels.tables import Row, SlotTables
from polychoir.models.omnivoice.network import Network
from polychoir.models.omnivoice.row import CODEBOOKS
from polychoir.runner.packing import Packing, pack
from polychoir.runner.slots import Slot, SlotTable
from polychoir.runner.step import Ran

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """Everything of a step that does not change with the step, on the device.

    source, position: int64 [N]. targets: int64 [P + G], packed tokens whose logits are wanted.
    canvas: int64 [P], arena row of each target position. slots: int64 [R].
    """

    source: Tensor
    position: Tensor
    runs: Runs
    targets: Tensor
    canvas: Tensor
    slots: Tensor
    layout: SampleLayout


class PlainStep:
    """A StepExecutor (runner/step.py)."""

    def __init__(self, network: Network, slots: SlotTable) -> None:
        self._network = network
        self._tables = slots.tables
        self._kept: tuple[tuple[int, ...], PlainBatch] | None = None

    def run(self, slots: Sequence[Slot], steps: Sequence[int]) -> Ran:
        batch = self._batch(slots)
        normed, ran = self.hidden(batch)
        logits = self._network.logits(normed[batch.targets])
        clock = torch.tensor(
            [[step, slot.row.timetable[step]] for slot, step in zip(slots, steps, strict=True)]
        )
        params = sample_params(self._tables, batch.slots, *clock.to(normed.device).unbind(1))
        arena = self._tables.arena
        canvas, sound = sample_step(
            logits, arena[batch.canvas], batch.layout, params, self._network.config.mask_id
        )
        arena[batch.canvas] = canvas
        self._tables.sound[batch.slots] &= sound
        return ran

    def hidden(self, batch: PlainBatch) -> tuple[Tensor, Ran]:
        """Final hidden states [N, hidden], and how they came about."""
        attend = self._network.attend_runs(batch.runs)
        return self._network.hidden(self._tables.arena, batch.source, batch.position, attend), Ran()

    def close(self) -> None:
        self._kept = None

    def _batch(self, slots: Sequence[Slot]) -> PlainBatch:
        """The last one is kept: most steps have the rows of the step before."""
        key = tuple(slot.serial for slot in slots)
        if self._kept is None or self._kept[0] != key:
            self._kept = (key, make_batch(pack(slots), self._network.device))
        return self._kept[1]


def make_batch(packing: Packing, device: torch.device) -> PlainBatch:
    def send(values: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(values.astype(np.int64, copy=False)).to(device)

    return PlainBatch(
        source=send(packing.source),
        position=send(packing.position),
        runs=make_runs(packing.lengths.tolist(), device),
        targets=send(packing.targets),
        canvas=send(np.concatenate([slot.canvas for slot in packing.slots])),
        slots=send(packing.rows[:, Row.SLOT]),
        layout=sample_layout(packing, send),
    )


def sample_layout(packing: Packing, send: Callable[[Index], Tensor]) -> SampleLayout:
    frames = packing.rows[:, Row.FRAMES].astype(np.int64)
    first = np.cumsum(frames) - frames
    cell_order = np.concatenate(
        [
            (np.arange(count)[None, :] + start) * CODEBOOKS + np.arange(CODEBOOKS)[:, None]
            for start, count in zip(first, frames, strict=True)
        ],
        axis=None,
    )
    cell_row = np.repeat(np.arange(frames.size), frames * CODEBOOKS)
    settings = [slot.row for slot in packing.slots]

    def where(wanted: list[bool]) -> Tensor:
        return send(np.flatnonzero(np.array(wanted)[packing.row_of]))

    return SampleLayout(
        row=send(packing.row_of),
        frame=send(packing.frame),
        cell_order=send(cell_order),
        cell_row=send(cell_row),
        cell_rank=send(np.arange(cell_row.size) - (first * CODEBOOKS)[cell_row]),
        guided=send(packing.guided),
        warm=where([row.position_temperature > 0 for row in settings]),
        drawn=where([row.class_temperature > 0 for row in settings]),
    )


def sample_params(tables: SlotTables, slots: Tensor, step: Tensor, reveal: Tensor) -> SampleParams:
    guidance, position_temperature, class_temperature, layer_penalty = tables.knobs[slots].unbind(1)
    key_lo, key_hi, stream = tables.keys[slots].unbind(1)
    return SampleParams(
        guidance=guidance,
        position_temperature=position_temperature,
        class_temperature=class_temperature,
        layer_penalty=layer_penalty,
        keys=NoiseKeys(key_lo, key_hi, stream, step),
        reveal=reveal,
    )
