"""Runs step plans of an iterative model: start rows, one packed forward, sample, hand over what is finished.

Strictly in the order of the calls, from one thread (see threaded.py). On a GPU the host does not wait for
a step it has queued, only for the one before it; the device is read once per finished row, never per step.
It knows nothing of requests, order or time budgets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from polychoir.errors import InternalError, InvalidRequest
from polychoir.kernels.reference import sample_step
from polychoir.models.omnivoice.network import Network
from polychoir.models.omnivoice.postprocess import finish
from polychoir.models.omnivoice.row import OmniVoiceRow
from polychoir.runner.packing import PackedBatch, pack
from polychoir.runner.prompt_cache import PromptCache
from polychoir.runner.slots import Slot, SlotTable
from polychoir.types import PlannedRow, SequenceOutput, StepPlan, StepResult, VoicePrompt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polychoir.types import Samples

    Codes = NDArray[np.int16]

_log = logging.getLogger(__name__)


class Codec(Protocol):
    """What the runner needs of an audio codec; see models/omnivoice/codec.py."""

    def encode(self, samples: Samples) -> Codes: ...

    def decode(self, items: Sequence[Codes]) -> list[Samples]: ...


class ModelRunner:
    """A Stage (runner/threaded.py) over one network and one codec."""

    def __init__(
        self, network: Network, codec: Codec, *, resident_limit: int, prompt_cache_bytes: int
    ) -> None:
        config = network.config
        self._network = network
        self._codec = codec
        self._mask_id = config.mask_id
        self._slots = SlotTable(config.codebooks, config.mask_id, resident_limit, network.device)
        self._prompts = PromptCache(prompt_cache_bytes)
        self._packed: tuple[tuple[int, ...], PackedBatch] | None = None
        self._fence: torch.cuda.Event | None = None

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """One step of every row that still has a slot; see Stage.run."""
        refused = [output for planned in plan.rows if (output := self._start(planned)) is not None]
        live = self._live(plan)
        try:
            ended = self._advance(live)
        except Exception:
            # The engine starts these rows again, or gives up one that was alone: no slot may outlive that.
            for planned, _ in live:
                self._slots.drop(planned.seq_id)
            raise
        return StepResult(plan.plan_id, outputs=(*refused, *ended))

    def drop(self, seq_id: int) -> None:
        self._slots.drop(seq_id)

    def close(self) -> None:
        self._packed = None

    def _start(self, planned: PlannedRow) -> SequenceOutput | None:
        """Give a row at step 0 its slot. What goes wrong here is the row's own: it ends with that error."""
        if planned.step != 0:
            return None
        try:
            row = planned.chunk.payload
            if not isinstance(row, OmniVoiceRow):
                raise InternalError(
                    f"sequence {planned.seq_id} carries {type(row).__name__}, not OmniVoiceRow"
                )
            self._slots.start(planned.seq_id, row, self._reference(row), planned.epoch)
        except Exception as error:
            self._slots.drop(planned.seq_id)
            return SequenceOutput(planned.seq_id, error=error, epoch=planned.epoch)
        return None

    def _live(self, plan: StepPlan) -> list[tuple[PlannedRow, Slot]]:
        """Rows of the plan with their slots, oldest slot first, so that the order of the plan cannot change
        how a step is laid out. A row without a slot has left or failed, and that was reported then; a plan
        from before its restart must not touch it."""
        found = [(planned, self._slots.get(planned.seq_id)) for planned in plan.rows]
        live = [
            (planned, slot) for planned, slot in found if slot is not None and slot.epoch == planned.epoch
        ]
        return sorted(live, key=lambda pair: pair[1].serial)

    def _reference(self, row: OmniVoiceRow) -> Codes | None:
        """Codes of the row's reference, encoded now if only its clip is known."""
        if row.prompt is not None:
            return self._checked(row.prompt, row.ref_frames)
        if row.clip is None:
            return None
        clip = row.clip
        if row.clip_key is None:  # without its key a clip could be taken for somebody else's
            raise InternalError("a clip came without the hash of its content")
        codes = self._prompts.get(row.clip_key, lambda: self._encode(clip))
        if codes.shape[1] != row.ref_frames:
            raise InternalError(f"the clip gave {codes.shape[1]} frames, the row expects {row.ref_frames}")
        return codes

    def _encode(self, clip: bytes) -> Codes:
        return self._codec.encode(np.frombuffer(clip, dtype="<f4"))

    def _checked(self, prompt: VoicePrompt, frames: int) -> Codes:
        """The stored codes as an array. A wrong one would read outside the embedding table."""
        codes = np.frombuffer(prompt.codes, dtype="<i2")
        if codes.size != self._network.config.codebooks * frames:
            raise InvalidRequest("the voice's stored codes have the wrong size", param="voice")
        if codes.size and not 0 <= codes.min() <= codes.max() < self._mask_id:
            raise InvalidRequest("the voice's stored codes are outside the codebook", param="voice")
        return codes.reshape(self._network.config.codebooks, frames)

    def _advance(self, live: Sequence[tuple[PlannedRow, Slot]]) -> list[SequenceOutput]:
        """One step of these rows; what is at its end is decoded."""
        if not live:
            return []
        self._step(live)
        self._keep_one_step_ahead()
        return self._finish(
            [(planned, slot) for planned, slot in live if planned.step + 1 == len(slot.seat.row.timetable)]
        )

    def _step(self, live: Sequence[tuple[PlannedRow, Slot]]) -> None:
        """Forward and reveal, for all rows at once."""
        slots = [slot for _, slot in live]
        batch, device = self._pack(slots), self._network.device
        logits = self._network.forward(batch.tokens, self._slots.arena[batch.audio])
        clock = torch.tensor(
            [[planned.step, slot.seat.row.timetable[planned.step]] for planned, slot in live]
        ).to(device)
        numbers = torch.tensor([slot.number for slot in slots]).to(device)
        canvas, sound = sample_step(
            logits,
            self._slots.arena[batch.canvas],
            batch.layout,
            batch.settings.at(*clock.unbind(1)),
            self._mask_id,
        )
        self._slots.arena[batch.canvas] = canvas
        self._slots.sound[numbers] &= sound

    def _pack(self, slots: Sequence[Slot]) -> PackedBatch:
        """The layout of these rows. The last one is kept: most steps have the rows of the step before."""
        key = tuple(slot.serial for slot in slots)
        if self._packed is None or self._packed[0] != key:
            self._packed = (key, pack([slot.seat for slot in slots], self._network.device))
        return self._packed[1]

    def _keep_one_step_ahead(self) -> None:
        """Wait for the step before this one, so that joins and cancels stay at most one step away."""
        if self._network.device.type != "cuda":
            return
        before, self._fence = self._fence, torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._fence.record()
        if before is not None:
            before.synchronize()

    def _finish(self, ended: Sequence[tuple[PlannedRow, Slot]]) -> list[SequenceOutput]:
        """Read the codes of rows that had their last step, free their slots and decode them together."""
        if not ended:
            return []
        slots = [slot for _, slot in ended]
        codes, sound = self._slots.canvases(slots), self._slots.soundness(slots)
        # A cell that is still masked would be read outside the codec's table: on a GPU that ends the process.
        sound = [good and bool(item.max() < self._mask_id) for good, item in zip(sound, codes, strict=True)]
        for planned, _ in ended:
            self._slots.drop(planned.seq_id)
        outputs = [_broken(planned) for (planned, _), good in zip(ended, sound, strict=True) if not good]
        whole = [
            (planned, slot.seat.row, item)
            for (planned, slot), item, good in zip(ended, codes, sound, strict=True)
            if good
        ]
        return outputs + self._decode(whole)

    def _decode(self, rows: Sequence[tuple[PlannedRow, OmniVoiceRow, Codes]]) -> list[SequenceOutput]:
        """Audio of finished rows. If decoding them together fails, each is tried alone and fails alone."""
        if not rows:
            return []
        started = time.perf_counter()
        try:
            waves = self._codec.decode([codes for _, _, codes in rows])
            outputs = [
                _sung(planned, row, codes, finish(wave, row.shaping))
                for (planned, row, codes), wave in zip(rows, waves, strict=True)
            ]
        except Exception as error:
            if len(rows) == 1:
                planned = rows[0][0]
                return [SequenceOutput(planned.seq_id, error=error, epoch=planned.epoch)]
            _log.warning("decoding %d rows together failed, trying each alone: %s", len(rows), error)
            return [output for row in rows for output in self._decode([row])]
        share = (time.perf_counter() - started) / len(
            rows
        )  # so that a request's chunks add up to what was spent
        return [replace(output, decode_s=share) for output in outputs]


def _broken(planned: PlannedRow) -> SequenceOutput:
    error = InternalError(f"sequence {planned.seq_id}: the model's scores are not finite, or cells were left")
    return SequenceOutput(planned.seq_id, error=error, epoch=planned.epoch)


def _sung(planned: PlannedRow, row: OmniVoiceRow, codes: Codes, samples: Samples) -> SequenceOutput:
    prompt = VoicePrompt(
        codes=codes.astype("<i2").tobytes(),
        codebooks=codes.shape[0],
        frames=codes.shape[1],
        text=planned.chunk.text,
        rms=row.shaping.ref_rms,
    )
    return SequenceOutput(planned.seq_id, samples=samples, epoch=planned.epoch, codes=prompt)
