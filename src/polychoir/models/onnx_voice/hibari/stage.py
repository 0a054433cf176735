"""The device side of the embedded voice: one graph call and its signal processing per row.

Stateless, so several plans run at once on the threads of one runner. The graph and the array work release the
interpreter lock; nothing here is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from polychoir.errors import InternalError
from polychoir.models.onnx_voice.hibari.row import HibariRow
from polychoir.models.onnx_voice.session import open_session
from polychoir.types import PlannedRow, Samples, SequenceOutput, StepPlan, StepResult

if TYPE_CHECKING:
    import onnxruntime

_PADS = 2


def load_stage() -> HibariStage:
    """Read the packaged weights and run them once. Raises ModelLoadError."""
    from pathlib import Path

    from hibari import dsp
    from hibari.voices import voice_path

    # "heart" is in the package; any other voice would be downloaded, which this server never does.
    weights = Path(voice_path("heart", download_missing=False))
    stage = HibariStage(open_session(weights, "the embedded voice"), dsp.synth)
    stage.sing(HibariRow((0, 50, 83, 54, 156, 31, 4, 0), 1.0, 0, 0))
    return stage


class HibariStage:
    """Implements `polychoir.runner.threaded.Stage`; `run` may be called by several threads at once."""

    def __init__(self, session: onnxruntime.InferenceSession, synthesise: Callable[..., Any]) -> None:
        self._session = session
        self._synthesise = synthesise

    def run(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.plan_id, tuple(self._output(row) for row in plan.rows))

    def drop(self, seq_id: int) -> None:
        """Rows keep nothing here."""

    def close(self) -> None:
        """The session is freed with the stage."""

    def sing(self, row: HibariRow) -> Samples:
        """float32 [samples] at 24 kHz, a pure function of the row.

        The noise of each chunk has its own generator, spawned from (seed, chunk), where the library draws a
        whole text from one: a chunk must not depend on which chunks ran before it. Raises InternalError for
        an empty or non-finite result.
        """
        if len(row.ids) <= _PADS:
            raise InternalError("a chunk without phonemes reached the embedded voice")
        inputs = {"ids": np.array([row.ids], np.int64), "speed": np.array([row.speed], np.float32)}
        spectrum = [output[0] for output in self._session.run(None, inputs)]
        noise = np.random.default_rng(np.random.SeedSequence(row.seed, spawn_key=(row.chunk,)))
        samples: Samples = self._synthesise(*spectrum, noise)
        if not samples.size or not np.isfinite(samples).all():
            raise InternalError("the embedded voice gave empty or non-finite audio")
        return samples

    def _output(self, row: PlannedRow) -> SequenceOutput:
        try:
            samples = self.sing(row.chunk.payload)
        except InternalError as error:
            return SequenceOutput(row.seq_id, error=error, epoch=row.epoch)
        return SequenceOutput(row.seq_id, samples, epoch=row.epoch)
