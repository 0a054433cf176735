"""WorkerEngine: an Engine whose loops run in worker processes.

A request is known here until its last chunk has come back, so a worker that dies takes nothing with it: its
requests go to the next worker from step 0, where the same noise gives the same speech.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from polychoir.cluster import messages as m
from polychoir.cluster.router import Load, choose, tokens_of
from polychoir.cluster.supervisor import Patience, Supervisor, WorkerSpec
from polychoir.cluster.totals import past, total
from polychoir.engine.core import EngineStats
from polychoir.engine.engine import ChunkStream, check_submission, settle
from polychoir.engine.loop import Status
from polychoir.engine.plan import Limits
from polychoir.errors import InternalError, Overloaded, PolychoirError, Unavailable
from polychoir.types import STANDARD, Chunk, ChunkAudio, Terms

MOST_LOSSES = 2
"""How often a request is sent again. One that has seen three workers die may be what kills them."""

MOST_WAITING = 2_000
"""Submissions that wait until a worker takes what it was sent before."""

LOST_RETRY_S = 2.0
KILL_S = 5.0

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Asked:
    """A submission that is not through. `left`: its chunks that have not come back, by index."""

    stream: ChunkStream
    left: dict[int, Chunk]
    terms: Terms
    answer: asyncio.Future[None]
    asked_at: float
    worker: Supervisor | None = None
    losses: int = 0
    late_s: float = 0.0
    """Seconds between being asked and being sent to the worker that has it."""

    @property
    def terms_now(self) -> Terms:
        """What is left of its time; let in once, it is never refused."""
        if self.terms.timeout_s is None:
            return self.terms
        return replace(self.terms, timeout_s=max(0.0, self.terms.timeout_s - self.late_s))


class WorkerEngine:
    """One engine in front of `specs`, a worker for each. Same face as LocalEngine."""

    def __init__(
        self,
        name: str,
        specs: Sequence[WorkerSpec],
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """name: what the log calls the model."""
        self.name = name
        self.limits = _together(specs[0].limits, len(specs))
        self.workers: tuple[Supervisor, ...] = ()
        self._specs = specs
        self._patience = patience or Patience()
        self._clock = clock
        self._requests = itertools.count()
        self._asked: dict[int, Asked] = {}
        self._sent: dict[Supervisor, tuple[int, int]] = {}
        """Tokens and rows that each worker was sent and has not brought back."""
        self._past = EngineStats()
        self._waiting = 0
        self._settled: list[asyncio.Future[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    @property
    def status(self) -> Status:
        """Ready while any worker is; failed when none will be again."""
        if self._closed:
            return "stopped"
        states = {worker.status for worker in self.workers}
        if "ready" in states:
            return "ready"
        return "failed" if states == {"failed"} else "loading"

    @property
    def failure(self) -> PolychoirError | None:
        return next((worker.failure for worker in self.workers if worker.failure is not None), None)

    def start(self) -> None:
        names = [f"worker {number} of {self.name}" for number in range(len(self._specs))]
        self.workers = tuple(
            Supervisor(name, spec, self, self._patience)
            for name, spec in zip(names, self._specs, strict=True)
        )
        self._sent = dict.fromkeys(self.workers, (0, 0))
        self._tasks = [asyncio.create_task(worker.run(), name=worker.name) for worker in self.workers]

    async def wait_ready(self) -> None:
        if self.status == "loading":
            settled = asyncio.get_running_loop().create_future()
            self._settled.append(settled)
            await settled
        if self.status == "failed" and self.failure is not None:
            raise self.failure

    async def submit(self, chunks: Sequence[Chunk], terms: Terms = STANDARD) -> ChunkStream:
        check_submission(self.status, chunks, more=terms.more)
        request = next(self._requests)
        stream = ChunkStream(self, request, len(chunks))
        left = {chunk.index: chunk for chunk in chunks}
        if len(left) < len(chunks):
            raise InternalError("this is a bug in the model: two chunks of a request have one index")
        answer = asyncio.get_running_loop().create_future()
        asked = Asked(stream, left, terms, answer, self._clock())
        try:
            await self._room()
            self._asked[request] = asked
            self._place(asked)
            await answer
        except BaseException:
            self.abort(request)
            raise
        return stream

    def abort(self, request: int) -> None:
        asked = self._forget(request)
        if asked is not None and asked.worker is not None:
            asked.worker.send(m.Abort(request))

    def stats(self) -> EngineStats:
        """All workers together, and those that went before them."""
        return total([self._past, *(worker.stats for worker in self.workers)])

    async def aclose(self, timeout_s: float | None = None) -> None:
        """As every engine does it; a worker that takes longer is killed."""
        self._closed = True
        self._give_up(InternalError("the engine was stopped"))
        for worker in self.workers:
            worker.stop()
        if not self._tasks:
            return
        await asyncio.wait(self._tasks, timeout=timeout_s)
        for worker in self.workers:
            worker.kill()
        await asyncio.wait(self._tasks, timeout=KILL_S)
        for task in self._tasks:
            task.cancel()

    # -- sending ---------------------------------------------------------------------------------

    async def _room(self) -> None:
        """Wait until any worker has taken what it was sent before. Raises Overloaded if too many wait."""
        if self._waiting >= MOST_WAITING:
            raise Overloaded("too many requests are on their way", retry_after_s=1.0)
        if any(worker.takes_more for worker in self.workers):
            return
        self._waiting += 1
        free = [asyncio.ensure_future(worker.writable()) for worker in self.workers]
        try:
            await asyncio.wait(free, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1
            for one in free:
                one.cancel()

    def _place(self, asked: Asked) -> None:
        """Send it to a worker; while there is none it waits for the next that is ready."""
        ready = [worker for worker in self.workers if worker.status == "ready"]
        if not ready:
            return
        ready = [worker for worker in ready if worker.takes_more] or ready
        chunks = asked.left.values()
        tokens = tokens_of(chunks)
        worker = ready[choose([Load(*self._sent[one], one.stats) for one in ready], tokens)]
        self._count(worker, tokens, len(chunks))
        asked.worker, asked.late_s = worker, self._clock() - asked.asked_at
        record, tail = m.pack_submission(asked.stream.request, chunks, asked.terms_now)
        worker.send(record, tail)

    def _forget(self, request: int) -> Asked | None:
        """It is over, or nobody wants it any more."""
        asked = self._asked.pop(request, None)
        if asked is not None and asked.worker is not None:
            self._count(asked.worker, -tokens_of(asked.left.values()), -len(asked.left))
        return asked

    def _count(self, worker: Supervisor, tokens: int, rows: int) -> None:
        before = self._sent[worker]
        self._sent[worker] = (before[0] + tokens, before[1] + rows)

    # -- what becomes of the workers -------------------------------------------------------------

    def worker_ready(self, worker: Supervisor) -> None:
        _log.info(
            "%s is ready (process %d)", worker.name, 0 if worker.process is None else worker.process.pid
        )
        self._tell_settled()
        for asked in [asked for asked in self._asked.values() if asked.worker is None]:
            self._place(asked)

    def worker_lost(self, worker: Supervisor) -> None:
        # It may have answered more than it had time to report.
        finished = max(worker.stats.sequences_finished, worker.delivered)
        last = replace(past(worker.stats), sequences_finished=finished)
        self._past, worker.stats, worker.delivered = total([self._past, last]), EngineStats(), 0
        self._sent[worker] = (0, 0)
        for request, asked in list(self._asked.items()):
            if asked.worker is not worker:
                continue
            asked.worker = None
            asked.losses += 1
            if asked.losses <= MOST_LOSSES:
                self._place(asked)
                continue
            lost = Unavailable(
                "the worker was lost, again and again", code="worker_lost", retry_after_s=LOST_RETRY_S
            )
            del self._asked[request]
            _refuse(asked, lost)

    def worker_failed(self, worker: Supervisor) -> None:
        if self.status == "failed":
            self._give_up(InternalError(f"no worker is left: {self.failure}"))
            self._tell_settled()

    def _tell_settled(self) -> None:
        waiting, self._settled = self._settled, []
        for one in waiting:
            settle(one, None)

    def _give_up(self, error: PolychoirError) -> None:
        asked, self._asked = list(self._asked.values()), {}
        for one in asked:
            _refuse(one, error)

    # -- what they say ---------------------------------------------------------------------------

    def worker_said(self, worker: Supervisor, record: m.FromWorker, tail: memoryview) -> None:
        match record:
            case m.Answer(request, refusal):
                self._answered(request, refusal)
            case m.Ended():
                self._ended(worker, record, tail)
            case m.Failed(request, fault):
                asked = self._forget(request)
                if asked is not None:
                    worker.send(m.Abort(request))
                    asked.stream.put(m.to_error(fault))

    def _answered(self, request: int, refusal: m.Fault | None) -> None:
        asked = self._asked.get(request)
        if asked is None:
            return
        if refusal is None:
            asked.terms = replace(asked.terms, more=True)
            settle(asked.answer, None)
            return
        self._forget(request)
        _refuse(asked, m.to_error(refusal))

    def _ended(self, worker: Supervisor, record: m.Ended, tail: memoryview) -> None:
        worker.useful()
        worker.delivered += 1
        asked = self._asked.get(record.request)
        if asked is None:
            return  # its consumer left while the chunk was on its way
        self._count(worker, -tokens_of([asked.left.pop(record.index)]), -1)
        if not asked.left:
            del self._asked[record.request]
        audio = ChunkAudio(
            record.index,
            np.frombuffer(tail, np.float32),
            record.sample_rate,
            record.steps,
            record.queue_s + asked.late_s,
            record.run_s,
            record.decode_s,
            record.codes,
        )
        asked.stream.put(audio)


def _refuse(asked: Asked, error: PolychoirError) -> None:
    """Whoever waits for the answer gets the error, or whoever listens already."""
    if asked.answer.done():
        asked.stream.put(error)
    else:
        settle(asked.answer, error)


def _together(limits: Limits, workers: int) -> Limits:
    """What so many workers bear: queues and slots add up, a step stays as large as it is."""
    return replace(
        limits,
        queue_limit=limits.queue_limit * workers,
        max_resident_seqs=limits.max_resident_seqs * workers,
    )
