"""The door: which model is meant, whether it can sing now, and how many may be inside.

It looks at snapshots only. A plainly full house is refused here, before any work; the engine's own
admission, which knows the exact work, may still refuse later.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from polychoir.engine.core import EngineStats
from polychoir.engine.engine import LOADING_RETRY_S, Engine
from polychoir.errors import InternalError, ModelNotFound, Overloaded, Unavailable
from polychoir.pipeline import Speaker
from polychoir.types import Tier

DRAINING_RETRY_S = 5.0
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
MAX_HELD_BYTES = 512 * 1024 * 1024
"""Bodies of all who are inside together: places alone would let in as many of the largest ones."""

_OPENAI_MODEL = re.compile(r"tts-.+|gpt-.+-tts.*")

State = Literal["loading", "ready", "draining", "failed", "stopped"]


@dataclass(eq=False, slots=True)
class Place:
    """One request inside: when its time is up, and the bytes of its body that are kept for it."""

    deadline: asyncio.Timeout
    held: int = 0


class Door:
    """Counts who is inside; says no when draining, loading or full."""

    def __init__(self, speakers: Mapping[str, Speaker]) -> None:
        self.speakers = speakers
        self.draining = False
        self._inside: set[Place] = set()
        self._held = 0
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
    def enter(self, deadline: asyncio.Timeout) -> Iterator[Place]:
        """Hold a place from before the body is read until the answer is made, so that bodies are bounded."""
        if self.draining:
            raise self.stopping()
        if self.inside >= self.capacity:
            raise Overloaded("The server is full.", retry_after_s=self._wait_s())
        place = Place(deadline)
        self._inside.add(place)
        try:
            yield place
        finally:
            self._inside.discard(place)
            self._held -= place.held

    def hold(self, place: Place, size: int) -> None:
        """Keep so many more bytes for a place until it is left. Raises Overloaded if that is too much."""
        if self._held + size > MAX_HELD_BYTES:
            raise Overloaded("The server holds too many large requests.", retry_after_s=self._wait_s())
        self._held += size
        place.held += size

    def cut(self) -> None:
        """The drain has taken long enough: the time of everybody inside is up. Call in the event loop."""
        now = asyncio.get_running_loop().time()
        for place in self._inside:
            if not place.deadline.expired():
                place.deadline.reschedule(now)

    def stopping(self) -> Unavailable:
        """The error for those who are too late."""
        return Unavailable("The server is stopping.", code="draining", retry_after_s=DRAINING_RETRY_S)

    def check_open(self, speaker: Speaker, tier: Tier) -> None:
        """Raises Unavailable while the model loads, InternalError if it failed, Overloaded if it is full."""
        engine, name = speaker.engine, speaker.info.name
        if engine.status == "loading":
            raise Unavailable(
                f"The model {name} is still loading.", code="loading", retry_after_s=LOADING_RETRY_S
            )
        if engine.status != "ready":
            raise InternalError(f"the engine of {name} has {engine.status}: {engine.failure!r}")
        stats = engine.stats()
        if stats.waiting_by_tier.get(tier, 0) >= engine.limits.queue_limit:
            raise Overloaded(f"The {tier} queue of {name} is full.", retry_after_s=_retry_s(stats))

    def _wait_s(self) -> float:
        return max(_retry_s(speaker.engine.stats()) for speaker in self.speakers.values())


def _room(engine: Engine) -> int:
    """A place for every row that may wait or run: one tier that is full must not shut out another."""
    return len(get_args(Tier)) * engine.limits.queue_limit + engine.limits.max_resident_seqs


def _retry_s(stats: EngineStats) -> float:
    return min(max(stats.backlog_s, MIN_RETRY_S), MAX_RETRY_S)
