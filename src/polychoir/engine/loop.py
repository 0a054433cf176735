"""EngineLoop: the thread that owns an EngineCore.

Everything reaches it through an inbox of small commands, everything leaves through the callbacks they
carry; nothing else is shared. It sleeps on one event that both the inbox and the runner set.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from polychoir.engine.admission import admit, queue_full, queue_refusal
from polychoir.engine.calibrate import Calibration, calibrated
from polychoir.engine.core import EngineCore, EngineStats
from polychoir.engine.eviction import worst_queued
from polychoir.engine.plan import Limits, fitted
from polychoir.engine.scheduler import Scheduler
from polychoir.engine.sequence import Ended
from polychoir.engine.sequence import Sequence as Row
from polychoir.errors import DeviceLost, InternalError, Overloaded, PolychoirError
from polychoir.models.base import Model
from polychoir.types import Chunk, Device, Terms

logger = logging.getLogger(__name__)

Status = Literal["loading", "ready", "failed", "stopped"]

TURN_LIMIT = 64
"""Commands taken between two steps: a flood of arrivals does not keep the device waiting."""
INBOX_LIMIT = 20_000
"""Commands not yet taken. Each open request has a few at most, so this is far above any honest load."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Make these chunks. `answer` is told once: None if they were let in, else why not.

    `deliver` then gets each chunk's end.
    """

    request: int
    chunks: Sequence[Chunk]
    terms: Terms
    answer: Callable[[PolychoirError | None], None]
    deliver: Callable[[Ended | PolychoirError], None]


@dataclass(frozen=True, slots=True)
class Abort:
    """The consumer of this request has gone."""

    request: int


class EngineLoop:
    """Loads the model in its own thread, then steps the core until told to stop."""

    def __init__(
        self,
        model: Model,
        limits: Limits,
        clock: Callable[[], float],
        calibration: Calibration | None = None,
    ) -> None:
        """calibration: None takes a default curve of step costs."""
        self.status: Status = "loading"
        self.failure: BaseException | None = None
        self._core: EngineCore | None = None
        self._model = model
        self._limits = limits
        self._calibration = calibration
        self._clock = clock
        self._inbox: deque[Submit | Abort] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._on_settled: list[Callable[[], None]] = []
        self._on_end: list[Callable[[], None]] = []
        self._lock = threading.Lock()  # guards status together with what depends on it
        self._next_seq_id = 0
        self._sinks: dict[int, Callable[[Ended | PolychoirError], None]] = {}
        self._rows: dict[int, set[int]] = {}
        self._thread = threading.Thread(target=self._run, name="polychoir-engine", daemon=True)

    @property
    def stats(self) -> EngineStats:
        """The latest snapshot."""
        return EngineStats() if self._core is None else self._core.stats

    def start(self) -> None:
        self._thread.start()

    def post(self, command: Submit | Abort) -> None:
        """Hand over a command from any thread.

        Raises Overloaded if the inbox is full, InternalError if the engine has stopped.
        """
        with self._lock:
            if self.status in {"failed", "stopped"}:
                raise InternalError(f"the engine has {self.status}")
            if len(self._inbox) >= INBOX_LIMIT and isinstance(command, Submit):
                raise Overloaded("the inbox is full", retry_after_s=1.0)
            self._inbox.append(command)
        self._wake.set()

    def stop(self) -> None:
        """Stop after the plans in flight. Requests that are not done get an error."""
        self._stopping = True
        self._wake.set()

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once loading has ended, well or badly; at once if it has."""
        with self._lock:
            if self.status == "loading":
                self._on_settled.append(callback)
                return
        callback()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call back once the loop has ended after it was ready, before the requests inside are told."""
        self._on_end.append(callback)

    @property
    def device(self) -> Device | None:
        """What the model runs on; None until it is loaded."""
        return None if self._core is None else self._core.runner.device

    @property
    def owes(self) -> bool:
        """True while the runner has something to bring back, or a command has not been taken.

        Read from any thread, and true even in the middle of a call that never returns.
        """
        if self._core is None:
            return False
        house = self._core.scheduler
        return bool(self._inbox or house.in_flight or house.decoding or house.preparing)

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            runner = self._model.load(self._wake.set)
            curve = calibrated(runner, self._model.info, self._limits, self._calibration)
        except (Exception, SystemExit) as error:  # a library may think that it is a command
            logger.error("model %s did not load: %s", self._model.info.name, error)
            self._settle("failed", error)
            return
        scheduler = Scheduler(fitted(self._limits, runner.step_tokens), curve.cost)
        core = self._core = EngineCore(scheduler, runner, self._clock, self._deliver, lag=runner.device.lag)
        self._settle("ready")
        try:
            self._loop(core)
            self._end("stopped", InternalError("the engine was stopped"))
        except DeviceLost as error:
            logger.error("the device is lost: %s", error)
            self._end("failed", error, error)
        except Exception as error:
            logger.exception("this is a bug: the engine loop failed")
            self._end("failed", InternalError(f"the engine loop failed: {error!r}"), error)
        runner.close()

    def _loop(self, core: EngineCore) -> None:
        while not self._stopping:
            self._take_inbox(core)
            progressed = core.step()
            if not progressed and not self._inbox:
                self._wake.wait()
            self._wake.clear()

    def _settle(self, status: Status, failure: BaseException | None = None) -> None:
        with self._lock:
            self.status, self.failure = status, failure
            waiting, self._on_settled = self._on_settled, []
        for callback in waiting:
            callback()

    def _end(self, status: Status, error: PolychoirError, failure: BaseException | None = None) -> None:
        """Nobody is left waiting: whoever is in the house or in the inbox gets the error."""
        with self._lock:
            self.status, self.failure = status, failure
        for callback in self._on_end:
            callback()
        for sink in self._sinks.values():
            sink(error)
        self._sinks.clear()
        while self._inbox:
            command = self._inbox.popleft()
            if isinstance(command, Submit):
                command.answer(error)

    # -- commands --------------------------------------------------------------------------------

    def _take_inbox(self, core: EngineCore) -> None:
        for _ in range(min(len(self._inbox), TURN_LIMIT)):
            command = self._inbox.popleft()
            if isinstance(command, Submit):
                self._submit(core, command)
            else:
                self._abort(core, command)

    def _submit(self, core: EngineCore, command: Submit) -> None:
        now, terms = self._clock(), command.terms
        if queue_full(core.scheduler, len(command.chunks), terms):
            refusal = queue_refusal(core.scheduler, len(command.chunks), terms)
            core.evict(worst_queued(core.scheduler, command.chunks, terms), refusal)
        try:
            wanted = admit(core.scheduler, command.chunks, terms, now)
        except Overloaded as refused:
            core.counts.sequences_refused += len(command.chunks)
            command.answer(refused)
            return
        self._sinks[command.request] = command.deliver
        rows = self._rows.setdefault(command.request, set())
        expires_at = float("inf") if terms.timeout_s is None else now + terms.timeout_s
        for chunk, (urgency, deadline) in zip(command.chunks, wanted, strict=True):
            rows.add(self._next_seq_id)
            core.add(
                Row(
                    self._next_seq_id,
                    command.request,
                    chunk,
                    terms.tier,
                    now,
                    terms.tenant,
                    urgency,
                    deadline,
                    expires_at,
                )
            )
            self._next_seq_id += 1
        command.answer(None)

    def _abort(self, core: EngineCore, command: Abort) -> None:
        self._sinks.pop(command.request, None)
        for seq_id in sorted(self._rows.pop(command.request, ())):
            core.abort(seq_id)

    def _deliver(self, ended: Ended) -> None:
        error = ended.output.error
        for lost in (error, error and error.__cause__):
            if isinstance(lost, DeviceLost):  # no other row would fare better
                raise lost
        request = ended.sequence.request
        rows = self._rows[request]
        rows.discard(ended.sequence.seq_id)
        sink = self._sinks[request]
        if not rows:
            del self._rows[request], self._sinks[request]
        sink(ended)
