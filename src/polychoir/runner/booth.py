"""Beside the step loop: finished codes become audio here, and reference clips become codes.

One thread, and on a GPU one stream, that take whatever waits, in groups. The step loop hands over and goes
on: nothing it calls here waits or reads the device. What waits is bounded by what the engine lets in: a row
holds its place there until its output is out. The booth knows no plans and no slots.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from polychoir.errors import DeviceLost, InternalError
from polychoir.models.omnivoice.codec import CODEBOOK_ENTRIES
from polychoir.models.omnivoice.postprocess import finish
from polychoir.models.omnivoice.row import CODEBOOKS, FRAME_SAMPLES, OmniVoiceRow
from polychoir.runner.cuda import is_lost, mark
from polychoir.runner.prompt_cache import PromptCache
from polychoir.types import PlannedRow, Samples, SequenceOutput, StepResult, VoicePrompt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Codes = NDArray[np.int16]

_log = logging.getLogger(__name__)

MOST_FRAMES = 2_048
"""Of a group of rows: more in one piece gives no more speed, and keeps its first row waiting for its last."""
MOST_CLIPS = 8
MOST_CLIP_FRAMES = 1_000
"""Of a group of clips, for the same reason: what the encoder's largest graphs take."""
_SAMPLE = np.dtype("<f4")
_FIRST = -1
"""Priority of the stream: its kernels are few and short, and somebody waits for each of them."""


class Codec(Protocol):
    """What a booth needs of models/omnivoice/codec.py. All calls come from one thread."""

    def encode(self, items: Sequence[Samples]) -> list[Codes]: ...

    def decode(self, items: Sequence[Codes]) -> list[Samples]: ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A row at its end. codes: int32 [frames, codebooks], sound: int32 [], 0 if a score of it was not finite;
    both still on the device."""

    planned: PlannedRow
    row: OmniVoiceRow
    codes: Tensor
    sound: Tensor


@dataclass(frozen=True, slots=True)
class _Handed:
    """A finished row, and the event after which its tensors hold what they should."""

    made: Finished
    ready: torch.cuda.Event | None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A sequence whose row's clip is to be encoded."""

    seq_id: int
    row: OmniVoiceRow

    @property
    def clip(self) -> bytes:
        return self.row.clip or b""

    @property
    def frames(self) -> int:
        return len(self.clip) // (_SAMPLE.itemsize * FRAME_SAMPLES)


class Booth:
    """Decodes, shapes and encodes on its own thread, and says so through `emit`, called on that thread."""

    def __init__(
        self,
        codec: Codec,
        *,
        prompts: PromptCache,
        emit: Callable[[StepResult], None],
        device: torch.device,
    ) -> None:
        self._codec = codec
        self._prompts = prompts
        self._emit = emit
        self._gpu = _Gpu(device) if device.type == "cuda" else None
        self._change = threading.Condition()
        """Guards the four below; nothing slow is done under it."""
        self._rows: deque[_Handed] = deque()
        self._clips: deque[_Asked] = deque()
        self._encoded: dict[int, Codes | None] = {}
        """Of sequences that asked for it and have neither taken nor dropped it; None: not there yet."""
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="polychoir-booth", daemon=True)
        self._thread.start()

    # -- called by the step loop -----------------------------------------------------------------

    def finish(self, rows: Sequence[Finished], ready: torch.cuda.Event | None = None) -> None:
        """Have these rows decoded; one output for each comes later. ready: recorded behind what made them."""
        with self._change:
            self._rows.extend(_Handed(row, ready) for row in rows)
            self._change.notify()

    def encode(self, seq_id: int, row: OmniVoiceRow) -> None:
        """Have the row's clip encoded; `prepared`, or an output with the row's own error, comes later."""
        with self._change:
            self._encoded[seq_id] = None
            self._clips.append(_Asked(seq_id, row))
            self._change.notify()

    def take(self, seq_id: int) -> Codes | None:
        """The codes of this sequence's clip, int16 [codebooks, frames], given once, or None."""
        with self._change:
            return self._encoded.pop(seq_id, None)

    def drop(self, seq_id: int) -> None:
        """Forget a sequence whose clip was to be encoded. Unknown ids are fine."""
        with self._change:
            self._encoded.pop(seq_id, None)

    def time_decode(self, frames: int) -> float:
        """Seconds from codes to samples for one row of so many frames. For a booth that has nothing to do:
        the codec is used from the caller's thread."""
        codes = np.zeros((CODEBOOKS, frames), np.int16)
        took = []
        with self._on_stream():
            for _ in range(2):
                started = time.perf_counter()
                self._codec.decode([codes])
                took.append(time.perf_counter() - started)
        return min(took)

    def close(self) -> None:
        """End the thread after what it has at hand; what waits stays undone."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join()

    # -- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        while (turn := self._next()) is not None:
            rows, clips = turn
            with self._on_stream():
                if rows:
                    self._emit(StepResult(None, tuple(self._sing(rows))))
                if clips:
                    self._emit(self._hear(clips))

    def _next(self) -> tuple[list[_Handed], list[_Asked]] | None:
        """A group of finished rows and one of clips, whatever waits of the two, so that neither holds up the
        other for long. None at the end."""
        with self._change:
            while not (self._rows or self._clips or self._closing):
                self._change.wait()
            if self._closing:
                return None
            return self._next_rows(), self._next_clips()

    def _next_rows(self) -> list[_Handed]:
        group: list[_Handed] = []
        frames = 0
        while self._rows and (not group or frames + self._rows[0].made.codes.shape[0] <= MOST_FRAMES):
            group.append(self._rows.popleft())
            frames += group[-1].made.codes.shape[0]
        return group

    def _next_clips(self) -> list[_Asked]:
        """Clips that somebody still wants. One that is known, or in the group already, takes no room."""
        group: list[_Asked] = []
        new: set[str | None] = set()
        frames = 0
        while self._clips:
            asked = self._clips[0]
            key = asked.row.clip_key
            if asked.seq_id in self._encoded:
                if key not in new and key not in self._prompts:
                    frames += asked.frames
                    if new and (len(new) == MOST_CLIPS or frames > MOST_CLIP_FRAMES):
                        break
                    new.add(key)
                group.append(asked)
            self._clips.popleft()
        return group

    # -- from codes to audio ---------------------------------------------------------------------

    def _sing(self, group: Sequence[_Handed]) -> list[SequenceOutput]:
        """The output of each row. One that is not sound, or has a cell still masked, never reaches the codec:
        such a cell would be read outside its table, and on a GPU that ends the process."""
        started = time.perf_counter()
        try:
            made = self._bring(group)
        except Exception as error:
            return [self._failed(handed.made.planned, error) for handed in group]
        good = [(finished, codes) for finished, codes, sound in made if sound and _is_whole(codes)]
        bad = [finished.planned for finished, codes, sound in made if not (sound and _is_whole(codes))]
        outputs = [*self._decode(good), *(_broken(planned) for planned in bad)]
        # Shared, so that a request's chunks add up to what was spent.
        share = (time.perf_counter() - started) / len(group)
        return [replace(output, decode_s=share) for output in outputs]

    def _bring(self, group: Sequence[_Handed]) -> list[tuple[Finished, Codes, bool]]:
        """Codes int16 [codebooks, frames] of each row on the host, and whether its scores were finite: one
        transfer each."""
        rows = [handed.made for handed in group]
        if self._gpu is not None:
            self._gpu.follow(handed.ready for handed in group)
        codes = torch.cat([row.codes for row in rows]).to(torch.int16)
        sound = torch.stack([row.sound for row in rows])
        if self._gpu is not None:
            # Until the copies are over `rows` holds the tensors, which the stream of the steps may not reuse.
            codes, sound = self._gpu.to_host(codes, sound)
        ends = np.cumsum([row.codes.shape[0] for row in rows])[:-1]
        items = [np.ascontiguousarray(part.T) for part in np.split(codes.numpy(), ends)]
        return list(zip(rows, items, (bool(value) for value in sound.tolist()), strict=True))

    def _decode(self, rows: Sequence[tuple[Finished, Codes]]) -> list[SequenceOutput]:
        """If decoding them together fails, each is tried alone and fails alone."""
        if not rows:
            return []
        try:
            waves = self._codec.decode([codes for _, codes in rows])
            return [
                _sung(made.planned, made.row, codes, finish(wave, made.row.shaping))
                for (made, codes), wave in zip(rows, waves, strict=True)
            ]
        except Exception as error:
            if len(rows) == 1:
                return [self._failed(rows[0][0].planned, error)]
            _log.warning("decoding %d rows together failed, trying each alone: %s", len(rows), error)
            return [output for row in rows for output in self._decode([row])]

    def _failed(self, planned: PlannedRow, error: Exception) -> SequenceOutput:
        return SequenceOutput(planned.seq_id, error=self._blame(error), epoch=planned.epoch)

    # -- from clips to codes ---------------------------------------------------------------------

    def _hear(self, group: Sequence[_Asked]) -> StepResult:
        """Every clip once, however many ask for it; what goes wrong with it ends those who did."""
        clips = {key: asked.clip for asked in group if (key := asked.row.clip_key) is not None}
        heard = self._prompts.fetch(clips, self._encode)
        # Without its key a clip could be taken for somebody else's.
        unkeyed = InternalError("a clip came without the hash of its content")
        errors = {None: unkeyed} | {key: self._blame(error) for key, error in heard.errors.items()}
        failed = {asked.seq_id: errors[key] for asked in group if (key := asked.row.clip_key) in errors}
        with self._change:
            for asked in group:
                codes = heard.codes.get(asked.row.clip_key or "")
                if codes is None:
                    self._encoded.pop(asked.seq_id, None)
                elif asked.seq_id in self._encoded:
                    self._encoded[asked.seq_id] = codes
        return StepResult(
            None,
            tuple(SequenceOutput(seq_id, error=error) for seq_id, error in failed.items()),
            prepared=tuple(asked.seq_id for asked in group if asked.seq_id not in failed),
            encoded=heard.encoded,
        )

    def _encode(self, clips: Sequence[bytes]) -> list[Codes]:
        return self._codec.encode([np.frombuffer(clip, _SAMPLE) for clip in clips])

    # -- the device ------------------------------------------------------------------------------

    def _blame(self, error: Exception) -> Exception:
        """The row's own error, or that of a device which no other row would fare better on."""
        if self._gpu is None or not is_lost(self._gpu.device):
            return error
        lost = DeviceLost(f"the device is lost: {error}")
        lost.__cause__ = error
        return lost

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._gpu is None else torch.cuda.stream(self._gpu.stream)


class _Gpu:
    """The booth's stream."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device, priority=_FIRST)  # type: ignore[no-untyped-call]
        self.device = device

    def follow(self, events: Iterable[torch.cuda.Event | None]) -> None:
        for event in events:
            if event is not None:
                self.stream.wait_event(event)

    def to_host(self, *tensors: Tensor) -> list[Tensor]:
        """Copies in pinned memory, there when this returns."""
        copies = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors]
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        mark(self.stream).synchronize()
        return copies


def _is_whole(codes: Codes) -> bool:
    return bool(codes.min() >= 0 and codes.max() < CODEBOOK_ENTRIES)


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
