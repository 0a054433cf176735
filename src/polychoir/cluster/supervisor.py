"""Supervisor: keeps one worker alive. Starts it, watches it, ends it if it is silent, starts it again.

It knows processes and waiting times, and nothing of requests: its owner is told when a worker can be used
and when it is lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from polychoir.cluster import messages as m
from polychoir.cluster.exits import why
from polychoir.cluster.frames import Frames, join
from polychoir.cluster.process import WorkerProcess, start_worker
from polychoir.engine.calibrate import Calibration
from polychoir.engine.core import EngineStats
from polychoir.engine.loop import Status
from polychoir.engine.plan import Limits
from polychoir.errors import InternalError, PolychoirError
from polychoir.types import ModelOptions

MOST_DEATHS_LOADING = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker runs. environment: added to this process's own."""

    reference: str
    options: ModelOptions
    limits: Limits
    step_timeout_s: float | None
    environment: Mapping[str, str]
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. A worker reports at least once a second; imports and compilers may hold it up while it loads.

    silence_s, loading_silence_s: without a word, until it is killed. first_pause_s, longest_pause_s: before
    it is started again; doubled each time it has died without a chunk to show for it.
    """

    silence_s: float = 10.0
    loading_silence_s: float = 120.0
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0

    def pause_s(self, deaths: int) -> float:
        """Before the next start, after so many deaths in a row."""
        return min(self.first_pause_s * 2.0 ** min(deaths - 1, 16), self.longest_pause_s)


class Owner(Protocol):
    """Who is told, in the event loop."""

    def worker_ready(self, worker: Supervisor) -> None: ...

    def worker_lost(self, worker: Supervisor) -> None:
        """It answers nothing more of what it was sent."""
        ...

    def worker_failed(self, worker: Supervisor) -> None:
        """It will not be started again; `failure` says why."""
        ...

    def worker_said(self, worker: Supervisor, record: m.FromWorker, tail: memoryview) -> None: ...


class Supervisor:
    """One worker and its successors. `stats` is the latest report of the one that runs,
    `delivered` the sequences that it has answered."""

    def __init__(self, name: str, spec: WorkerSpec, owner: Owner, patience: Patience) -> None:
        self.name = name
        self.spec = spec
        self.status: Status = "loading"
        self.failure: PolychoirError | None = None
        self.stats = EngineStats()
        self.delivered = 0
        self.process: WorkerProcess | None = None
        self._owner = owner
        self._patience = patience
        self._link: Frames | None = None
        self._deaths = 0
        self._deaths_loading = 0
        self._was_ready = False
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Keep a worker alive until `stop`, or until it is clear that none will live."""
        try:
            await self._live()
        except Exception as error:  # reported: a supervisor that is gone must not look like one that loads
            _log.exception("this is a bug: the supervisor of %s failed", self.name)
            self.kill()
            self.failure = InternalError(f"the supervisor of {self.name} failed: {error!r}")
        self.status = "stopped" if self.failure is None else "failed"
        if self.failure is not None:
            self._owner.worker_failed(self)

    def stop(self) -> None:
        """Let it end after its plans in flight, and start no other."""
        self._stopping.set()
        self.send(m.Stop())

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def send(self, record: m.ToWorker, tail: Sequence[bytes] = ()) -> None:
        """To the worker that runs; without one it is lost, and the owner has been told."""
        if self._link is not None:
            self._link.send(m.encode(record), tail)

    async def writable(self) -> None:
        """Wait until the worker takes what it was sent."""
        if self._link is not None:
            await self._link.writable.wait()

    @property
    def takes_more(self) -> bool:
        """Whether it has taken what it was sent."""
        return self._link is None or self._link.writable.is_set()

    def useful(self) -> None:
        """It has made something: what went wrong before is forgotten."""
        self._deaths = 0

    # -- its lives --------------------------------------------------------------------------------

    async def _live(self) -> None:
        while not self._stopping.is_set():
            await self._one_life()
            if self._stopping.is_set() or self.failure is not None:
                return
            await self._pause()

    async def _one_life(self) -> None:
        try:
            self.process, connection = await start_worker(self.spec.environment)
        except InternalError as error:
            self.failure = error
            return
        link = self._link = Frames(self._on_frame)
        await join(link, connection)
        spec = self.spec
        opening = m.Open(spec.reference, spec.options, spec.limits, spec.step_timeout_s, spec.calibration)
        self.send(opening)
        if self._stopping.is_set():
            self.send(m.Stop())
        await self._until_closed(link)
        link.close()
        self._link = None
        was_ready, self.status = self.status == "ready", "loading"
        if not self._stopping.is_set():
            self._owner.worker_lost(self)
        code = await self._end(self.process)
        if not self._stopping.is_set():
            self._mourn(self.process.pid, code, was_ready=was_ready)

    async def _until_closed(self, link: Frames) -> None:
        """Returns once the connection has ended, which is how a worker's end is seen first."""
        closed = asyncio.ensure_future(link.closed.wait())
        looked_at = time.monotonic()
        try:
            while not closed.done():
                patience, now = self._patience, time.monotonic()
                if now - looked_at > patience.silence_s / 2:
                    link.heard_at = now  # this process was paused itself: what came meanwhile is not read yet
                looked_at = now
                limit = patience.silence_s if self.status == "ready" else patience.loading_silence_s
                if now - link.heard_at > limit:
                    _log.error("%s has said nothing for %g s: killed", self.name, limit)
                    self.kill()  # the connection ends with it
                await asyncio.wait((closed,), timeout=patience.silence_s / 4)
        finally:
            closed.cancel()

    async def _end(self, process: WorkerProcess) -> int:
        """The exit code of a process whose connection has ended; it has no other reason to stay."""
        await asyncio.wait((process.ended,), timeout=self._patience.silence_s)
        process.kill()
        return await process.ended

    def _mourn(self, pid: int, code: int, *, was_ready: bool) -> None:
        _log.error("%s (process %d) has ended: %s", self.name, pid, why(code))
        self._deaths += 1
        self._deaths_loading = 0 if was_ready else self._deaths_loading + 1
        if self.failure is None and self._deaths_loading >= MOST_DEATHS_LOADING:
            self.failure = InternalError(
                f"{self.name} died {self._deaths_loading} times while it was loading: {why(code)}"
            )

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), self._patience.pause_s(self._deaths))
        except TimeoutError:
            return

    # -- what it says ----------------------------------------------------------------------------

    def _on_frame(self, head: memoryview, tail: memoryview) -> None:
        match m.decode_from_worker(head):
            case m.Settled(fault):
                self._settled(fault)
            case m.Report(stats):
                self.stats = stats
            case m.Log(logger, level, text):
                logging.getLogger(logger).log(level, "%s", text)
            case record:
                self._owner.worker_said(self, record, tail)

    def _settled(self, fault: m.Fault | None) -> None:
        if fault is None:
            self.status, self._was_ready = "ready", True
            self._owner.worker_ready(self)
            return
        error = m.to_error(fault)
        _log.error("%s: %s", self.name, error.message)
        if not self._was_ready:  # later on, memory that a dead worker still holds may be all that is missing
            self.failure = error
