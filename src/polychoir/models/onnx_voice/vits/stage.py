"""The device side of a VITS voice: one forward for a whole plan, each item cut at its own last frame.

The graph draws its noise itself, from a generator that is shared by all items and cannot be seeded per row,
so the noise is off (both scales 0): the same row gives the same samples alone, in any company and in any
order. The price is a slightly plainer voice; the words are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polychoir.errors import InternalError, ModelLoadError
from polychoir.models.onnx_voice.session import open_session
from polychoir.models.onnx_voice.vits.graph import with_frame_counts
from polychoir.models.onnx_voice.vits.row import VitsRow
from polychoir.types import PlannedRow, Samples, SequenceOutput, StepPlan, StepResult

if TYPE_CHECKING:
    import onnxruntime

NO_NOISE = 0.0


def load_stage(weights: Path) -> VitsStage:
    """Read the weights, expose the frame counts. Raises ModelLoadError naming the file."""
    try:
        model, frame_counts = with_frame_counts(weights.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"{weights}: cannot be read: {error.strerror}") from error
    except ModelLoadError as error:
        raise ModelLoadError(f"{weights}: {error.message}") from error
    return VitsStage(open_session(model, str(weights)), frame_counts)


class VitsStage:
    """Implements `polychoir.runner.threaded.Stage`; stateless, so `run` may be called by several threads."""

    def __init__(self, session: onnxruntime.InferenceSession, frame_counts: str) -> None:
        self._session = session
        self._outputs = [session.get_outputs()[0].name, frame_counts]

    def run(self, plan: StepPlan) -> StepResult:
        """Rows of one pace run together: the graph takes a single pace for the batch."""
        groups: dict[float, list[PlannedRow]] = {}
        for row in plan.rows:
            groups.setdefault(row.chunk.payload.length_scale, []).append(row)
        outputs: dict[int, SequenceOutput] = {}
        padded = 0
        for rows in groups.values():
            sizes = [len(row.chunk.payload.ids) for row in rows]
            padded += len(rows) * max(sizes) - sum(sizes)
            for row, samples in zip(rows, self.sing([row.chunk.payload for row in rows]), strict=True):
                outputs[row.seq_id] = _output(row, samples)
        in_order = tuple(outputs[row.seq_id] for row in plan.rows)
        return StepResult(plan.plan_id, in_order, padded_tokens=padded)

    def drop(self, seq_id: int) -> None:
        """Rows keep nothing here."""

    def close(self) -> None:
        """The session is freed with the stage."""

    def sing(self, rows: Sequence[VitsRow]) -> list[Samples]:
        """float32 [samples] per row, in order. All rows must have the same `length_scale`."""
        sizes = np.array([len(row.ids) for row in rows], np.int64)
        ids = np.zeros((len(rows), int(sizes.max())), np.int64)
        for line, row in zip(ids, rows, strict=True):
            line[: len(row.ids)] = row.ids
        scales = np.array([NO_NOISE, rows[0].length_scale, NO_NOISE], np.float32)
        inputs = {"input": ids, "input_lengths": sizes, "scales": scales}
        if rows[0].speaker is not None:
            inputs["sid"] = np.array([row.speaker for row in rows], np.int64)
        waves, frames = self._session.run(self._outputs, inputs)
        hop = waves.shape[-1] // int(frames.max())
        return [
            _ended(wave.reshape(-1)[: count * hop], hop) for wave, count in zip(waves, frames, strict=True)
        ]


def _ended(wave: Samples, hop: int) -> Samples:
    """A copy faded out over its last frame (12 ms).

    There, and only there, the decoder's convolutions see what follows: nothing for the longest item, blank
    frames for the others (measured: 1e-4 of full scale in the last sample). The fade makes the ends equal.
    """
    wave = wave.copy()
    wave[-hop:] *= np.linspace(1, 0, hop, dtype=np.float32)
    return wave


def _output(row: PlannedRow, samples: Samples) -> SequenceOutput:
    if not samples.size or not np.isfinite(samples).all():
        error = InternalError("the voice gave empty or non-finite audio")
        return SequenceOutput(row.seq_id, error=error, epoch=row.epoch)
    return SequenceOutput(row.seq_id, samples, epoch=row.epoch)
