"""Runs step plans of an iterative model: start rows, one step of all of them, hand over what is finished.

Strictly in the order of the calls, from one thread (see threaded.py). On a GPU the host queues one step while
the one before it runs, and never reads the device: settings went up when a row started, its end is known
from its timetable, and its codes leave through the booth. It knows nothing of requests or of their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from polychoir.errors import DeviceLost, InternalError, InvalidRequest
from polychoir.models.omnivoice.row import CODEBOOKS, OmniVoiceRow
from polychoir.runner.booth import Booth, Finished
from polychoir.runner.cuda import is_lost, mark
from polychoir.runner.measuring import TRIAL_FRAMES, Sweep
from polychoir.runner.slots import Slot, SlotTable
from polychoir.runner.step import Ran, StepExecutor
from polychoir.runner.threaded import Outbox, ThreadedRunner
from polychoir.types import (
    Chunk,
    Device,
    Measured,
    PlannedRow,
    SequenceOutput,
    StepPlan,
    StepResult,
    VoicePrompt,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Codes = NDArray[np.int16]

Live = list[tuple[PlannedRow, Slot]]


class ModelRunner:
    """A Stage (runner/threaded.py) over one step executor, one slot table and one booth."""

    def __init__(
        self, step: StepExecutor, slots: SlotTable, booth: Booth, *, device: torch.device, mask_id: int
    ) -> None:
        self._step = step
        self._slots = slots
        self._booth = booth
        self._mask_id = mask_id
        self._clips: dict[int, Codes] = {}
        """Encoded references of rows that have started: a row that starts again needs its own again."""
        self._gpu = _Gpu(device) if device.type == "cuda" else None

    def prepare(self, seq_id: int, chunk: Chunk) -> bool:
        """Have the row's clip encoded beside the steps, if it has one. Called from the engine's thread."""
        row = chunk.payload
        if not isinstance(row, OmniVoiceRow) or row.clip is None:
            return True
        self._booth.encode(seq_id, row)
        return False

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """One step of every row that still has a slot; see Stage.run."""
        with self._on_stream():
            try:
                refused = self._start(plan)
                live = self._live(plan)
                ran = self._advance(live)
            except Exception as error:
                # The engine starts these rows again, or gives one up that was alone: no slot may outlive it.
                for planned in plan.rows:
                    self._slots.drop(planned.seq_id)
                if self._gpu is not None and is_lost(self._gpu.device):
                    raise DeviceLost(f"the device is lost: {error}") from error
                raise
        return StepResult(plan.plan_id, tuple(refused), padded_tokens=ran.padded_tokens, graph=ran.graph)

    @torch.inference_mode()
    def measure(self, sweep: Sweep) -> Measured:
        """Time steps of made-up rows and one decode. For a stage that has no rows; it has none afterwards."""
        with self._on_stream():
            samples = sweep.run(self._seconds_a_step)
        return Measured(samples, self._booth.time_decode(TRIAL_FRAMES))

    def drop(self, seq_id: int) -> None:
        self._slots.drop(seq_id)
        self._clips.pop(seq_id, None)
        self._booth.drop(seq_id)

    def close(self) -> None:
        self._step.close()
        self._booth.close()

    # -- measuring -------------------------------------------------------------------------------

    def _seconds_a_step(self, rows: Sequence[OmniVoiceRow], steps: int) -> float:
        """The mean of the first so many steps of these rows, one behind the other as when serving."""
        with self._slots.visitors():
            slots = [self._slots.seat(-1 - number, row, 0) for number, row in enumerate(rows)]
            self._slots.upload([(slot, None) for slot in slots])
            self._synchronise()
            started = time.perf_counter()
            for step in range(steps):
                self._step.run(slots, [step] * len(slots))
                if self._gpu is not None:
                    self._gpu.stay_one_step_ahead()
            self._synchronise()
            return (time.perf_counter() - started) / steps

    def _synchronise(self) -> None:
        if self._gpu is not None:
            self._gpu.stream.synchronize()

    # -- the parts of a step ---------------------------------------------------------------------

    def _start(self, plan: StepPlan) -> list[SequenceOutput]:
        """Give rows at step 0 their slots. What goes wrong with one of them is its own: it ends with that."""
        seated: list[tuple[Slot, Codes | None]] = []
        refused = []
        for planned in plan.rows:
            if planned.step != 0:
                continue
            try:
                row = _row(planned)
                codes = self._reference(planned.seq_id, row)
                seated.append((self._slots.seat(planned.seq_id, row, planned.epoch), codes))
            except Exception as error:
                self._slots.drop(planned.seq_id)
                refused.append(SequenceOutput(planned.seq_id, error=error, epoch=planned.epoch))
        if seated:
            self._slots.upload(seated)
        return refused

    def _live(self, plan: StepPlan) -> Live:
        """Rows of the plan with their slots, oldest slot first, so that the order of the plan cannot change
        how a step is laid out. A row without a slot has left or failed, and that was reported then; a plan
        from before its restart must not touch it."""
        found = [(planned, self._slots.get(planned.seq_id)) for planned in plan.rows]
        live = [
            (planned, slot) for planned, slot in found if slot is not None and slot.epoch == planned.epoch
        ]
        return sorted(live, key=lambda pair: pair[1].serial)

    def _advance(self, live: Live) -> Ran:
        """One step of these rows; what is at its end goes to the booth."""
        if not live:
            return Ran()
        ran = self._step.run([slot for _, slot in live], [planned.step for planned, _ in live])
        self._finish([(p, slot) for p, slot in live if p.step + 1 == len(slot.row.timetable)])
        if self._gpu is not None:
            self._gpu.stay_one_step_ahead()
        return ran

    def _finish(self, ended: Live) -> None:
        """Take what these rows made and free their slots; nothing is read here."""
        if not ended:
            return
        codes, sound = self._slots.take([slot for _, slot in ended])
        for planned, _ in ended:
            self._slots.drop(planned.seq_id)
            self._clips.pop(planned.seq_id, None)
        rows = [
            Finished(planned, slot.row, made, good)
            for (planned, slot), made, good in zip(ended, codes, sound.unbind(), strict=True)
        ]
        self._booth.finish(rows, None if self._gpu is None else self._gpu.mark())

    def _reference(self, seq_id: int, row: OmniVoiceRow) -> Codes | None:
        """Codes of the row's reference."""
        if row.prompt is not None:
            return _checked(row.prompt, row.ref_frames, self._mask_id)
        if row.clip is None:
            return None
        codes = self._clips.get(seq_id)
        if codes is None:
            codes = self._booth.take(seq_id)
        if codes is None:
            raise InternalError(f"the clip of sequence {seq_id} was not encoded before it started")
        if codes.shape[1] != row.ref_frames:
            raise InternalError(f"the clip gave {codes.shape[1]} frames, the row expects {row.ref_frames}")
        self._clips[seq_id] = codes
        return codes

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._gpu is None else torch.cuda.stream(self._gpu.stream)


class OmniVoiceRunner(ThreadedRunner):
    """Implements `polychoir.models.base.Runner`: the stage's one thread beside the booth's."""

    def __init__(
        self,
        stage: ModelRunner,
        outbox: Outbox,
        *,
        mode: str,
        step_tokens: int,
        device: Device,
        sweep: Sweep,
    ) -> None:
        super().__init__(stage, threads=1, outbox=outbox, device=device)
        self.mode = mode
        self.step_tokens = step_tokens
        self._prepare: Callable[[int, Chunk], bool] = stage.prepare
        self._measure: Callable[[], Measured] = partial(stage.measure, sweep)

    def prepare(self, seq_id: int, chunk: Chunk) -> bool:
        return self._prepare(seq_id, chunk)

    def measure(self) -> Measured:
        return self._pool.submit(self._measure).result()


class _Gpu:
    """The stream of the steps, and how far ahead of it the host is."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.device = device
        self._fence: torch.cuda.Event | None = None

    def mark(self) -> torch.cuda.Event:
        return mark(self.stream)

    def stay_one_step_ahead(self) -> None:
        """Wait for the step before this one, so that joins and cancels stay at most one step away."""
        before, self._fence = self._fence, self.mark()
        if before is not None:
            before.synchronize()


def _row(planned: PlannedRow) -> OmniVoiceRow:
    row = planned.chunk.payload
    if not isinstance(row, OmniVoiceRow):
        raise InternalError(f"sequence {planned.seq_id} carries {type(row).__name__}, not OmniVoiceRow")
    return row


def _checked(prompt: VoicePrompt, frames: int, mask_id: int) -> Codes:
    """The stored codes as an array. A wrong one would read outside the embedding table."""
    codes = np.frombuffer(prompt.codes, dtype="<i2")
    if codes.size != CODEBOOKS * frames:
        raise InvalidRequest("the voice's stored codes have the wrong size", param="voice")
    if codes.size and not 0 <= codes.min() <= codes.max() < mask_id:
        raise InvalidRequest("the voice's stored codes are outside the codebook", param="voice")
    return codes.reshape(CODEBOOKS, frames)
