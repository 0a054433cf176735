"""A model that makes no speech: the whole contract of an iterative model in under 100 lines.

Its waveform spells its text in tones (`models/tones.py` reads it back). For tests, load and simulation;
docs/adding-a-model.md walks through it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np

from polychoir import types as t
from polychoir.errors import InternalError, UnspeakableText
from polychoir.models.base import Model, Runner
from polychoir.models.placement import check_cpu_only, log_cpu_only
from polychoir.models.tones import RATE, duration_s, say
from polychoir.runner.threaded import Outbox, ThreadedRunner
from polychoir.text import clean, is_speakable, segment

CHUNK_CHARS = 200
TRIALS = tuple(t.Chunk(0, "", t.Work(tokens, steps=2), None) for tokens in (32, 512, 4_096))


@dataclass(frozen=True, slots=True)
class FakeSettings:
    """A step takes step_ms + us_per_token * tokens; a share fail_rate of the rows fails, by seed."""

    fake_step_ms: float = 1.0
    fake_us_per_token: float = 2.0
    fake_steps: int = 8
    fake_tokens_per_char: float = 4.0
    fake_fail_rate: float = 0.0


class FakeModel:
    """Model, Frontend and Stage in one: it is that small."""

    def __init__(self, info: t.ModelInfo, settings: FakeSettings) -> None:
        self.info = info
        self.settings = settings

    @property
    def frontend(self) -> FakeModel:
        return self

    def prepare(self, request: t.SpeechRequest, voice: t.VoiceChoice) -> t.Prepared:
        if not is_speakable(text := clean(request.text)):
            raise UnspeakableText("there is nothing to say in this text")
        steps = request.sampling.num_step or int(self.info.defaults["num_step"])
        pieces = enumerate(segment(text, CHUNK_CHARS, len))
        chunks = tuple(self._chunk(index, piece, steps, request) for index, piece in pieces)
        return t.Prepared(chunks, len(chunks))

    def _chunk(self, index: int, text: str, steps: int, request: t.SpeechRequest) -> t.Chunk:
        work = t.Work(max(1, round(len(text) * self.settings.fake_tokens_per_char)), steps)
        return t.Chunk(index, text, work, request, duration_s(text, request.speed))

    def load(self, wake: Callable[[], None]) -> Runner:
        log_cpu_only(self.info.name)
        return ThreadedRunner(self, threads=1, outbox=Outbox(wake), trials=TRIALS)

    def run(self, plan: t.StepPlan) -> t.StepResult:
        time.sleep(self.settings.fake_step_ms / 1e3 + self.settings.fake_us_per_token * plan.tokens / 1e6)
        last = [row for row in plan.rows if row.step + 1 == row.chunk.work.steps]
        return t.StepResult(plan.plan_id, tuple(self._end(row) for row in last))

    def drop(self, seq_id: int) -> None:
        """A row has no state here."""

    def close(self) -> None:
        """There is nothing to free."""

    def _end(self, row: t.PlannedRow) -> t.SequenceOutput:
        request: t.SpeechRequest = row.chunk.payload
        if np.random.default_rng(request.seed).random() < self.settings.fake_fail_rate:
            return t.SequenceOutput(row.seq_id, error=InternalError("a fake failure"), epoch=row.epoch)
        return t.SequenceOutput(row.seq_id, say(row.chunk.text, request.seed, request.speed), epoch=row.epoch)


class FakePlugin:
    """The entry point `fake`: never claims a path, only its name."""

    def claims(self, reference: str) -> bool:
        return False

    def open(self, reference: str | None, options: t.ModelOptions) -> Model:
        check_cpu_only("fake", options)
        settings = FakeSettings(**{k: v for k, v in options.extra.items() if k.startswith("fake_")})
        defaults = {"num_step": options.defaults.get("num_step", settings.fake_steps)}
        takes, own = frozenset({"num_step", "speed", "seed", "language"}), frozenset(asdict(settings))
        name, tones = options.name or "fake", ("tones",)
        info = t.ModelInfo(name, "iterative", RATE, ("*",), tones, takes, defaults=defaults, settings=own)
        return FakeModel(replace(info, fingerprint=str(settings)), settings)


plugin = FakePlugin()
