"""The door: which model is meant, whether it can sing now, and how many may be inside.

It looks at snapshots only. A plainly full house is refused here, before any work; the engine's own
admission, which knows the exact work, may still refuse later.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from polychoir.engine.engine import Engine
from polychoir.errors import InternalError, ModelNotFound, Overloaded, Unavailable
from polychoir.pipeline import Speaker

LOADING_RETRY_S = 2.0
DRAINING_RETRY_S = 5.0
MOST_RETRY_S = 60.0
_OPENAI_MODEL = re.compile(r"tts-.+|gpt-.+-tts.*")

State = Literal["loading", "ready", "draining", "failed", "stopped"]


class Door:
    """Counts who is inside; says no when draining, loading or full."""

    def __init__(self, speakers: Mapping[str, Speaker]) -> None:
        self.speakers = speakers
        self.draining = False
        self._inside: set[asyncio.Timeout] = set()
        self.capacity = sum(_room(speaker.engine) for speaker in speakers.values())

    @property
    def inside(self) -> int:
        """Requests that hold a place."""
        return len(self._inside)

    @property
    def state(self) -> State:
        """The worst of the models; ready only when all are."""
        if self.draining:
            return "draining"
        states = {speaker.engine.status for speaker in self.speakers.values()}
        for worst in ("failed", "stopped", "loading"):
            if worst in states:
                return worst
        return "ready"

    def find(self, model: str | None) -> Speaker:
        """The model that a name means. Raises ModelNotFound, naming what is served."""
        default = next(iter(self.speakers.values()))
        if model is None:
            return default
        if model in self.speakers:
            return self.speakers[model]
        if _OPENAI_MODEL.fullmatch(model):
            return default
        served = ", ".join(self.speakers)
        raise ModelNotFound(f"The model {model[:100]!r} is not served here. Served: {served}.")

    @contextmanager
    def enter(self, deadline: asyncio.Timeout) -> Iterator[None]:
        """Hold a place from before the body is read until the answer is made, so that bodies are bounded."""
        if self.draining:
            raise self.stopping()
        if self.inside >= self.capacity:
            raise Overloaded("The server is full.", retry_after_s=max(map(self._wait_s, self.speakers)))
        self._inside.add(deadline)
        try:
            yield
        finally:
            self._inside.discard(deadline)

    def cut(self) -> None:
        """The drain has taken long enough: the time of everybody inside is up. Call in the event loop."""
        now = asyncio.get_running_loop().time()
        for deadline in self._inside:
            if not deadline.expired():
                deadline.reschedule(now)

    def stopping(self) -> Unavailable:
        """The error for those who are too late."""
        return Unavailable("The server is stopping.", code="draining", retry_after_s=DRAINING_RETRY_S)

    def check_open(self, speaker: Speaker) -> None:
        """Raises Unavailable while the model loads, InternalError if it failed, Overloaded if it is full."""
        engine, name = speaker.engine, speaker.info.name
        if engine.status == "loading":
            raise Unavailable(
                f"The model {name} is still loading.", code="loading", retry_after_s=LOADING_RETRY_S
            )
        if engine.status != "ready":
            raise InternalError(f"the engine of {name} has {engine.status}: {engine.failure!r}")
        if engine.stats().waiting >= engine.limits.queue_limit:
            raise Overloaded(f"The model {name} has a full queue.", retry_after_s=self._wait_s(name))

    def _wait_s(self, name: str) -> float:
        return backlog_s(self.speakers[name].engine)


def _room(engine: Engine) -> int:
    return engine.limits.queue_limit + engine.limits.max_resident_seqs


def backlog_s(engine: Engine) -> float:
    """Seconds until the queue of this moment is through at the pace so far, from 1 to MOST_RETRY_S."""
    stats = engine.stats()
    pace = stats.sequences_finished / stats.busy_s if stats.busy_s else 0.0
    return min(MOST_RETRY_S, max(1.0, stats.waiting / pace if pace else 1.0))
