"""Engine: the async face of one model's engine, wherever its loop runs.

`submit` posts chunks and returns a stream once the engine has let them in; leaving the stream early takes
its rows out before the next step.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Protocol

from polychoir.engine.calibrate import Calibration
from polychoir.engine.core import EngineStats
from polychoir.engine.loop import Abort, EngineLoop, Status, Submit
from polychoir.engine.plan import Limits
from polychoir.engine.sequence import Ended
from polychoir.errors import InternalError, PolychoirError, Unavailable
from polychoir.models.base import Model
from polychoir.types import STANDARD, Chunk, ChunkAudio, Terms

LOADING_RETRY_S = 2.0


class Engine(Protocol):
    """What the pipeline and the server know of an engine. To be used from one event loop at a time."""

    @property
    def limits(self) -> Limits:
        """The bounds of all that stands behind this face."""
        ...

    @property
    def status(self) -> Status: ...

    @property
    def failure(self) -> BaseException | None:
        """Why the status is failed."""
        ...

    def start(self) -> None:
        """Begin loading; returns at once. Call in the event loop."""
        ...

    async def wait_ready(self) -> None:
        """Wait until the model is warm. Raises what loading raised (ModelLoadError, mostly)."""
        ...

    async def submit(self, chunks: Sequence[Chunk], terms: Terms = STANDARD) -> ChunkStream:
        """Make these chunks.

        Raises Overloaded (full), Unavailable (still loading), InternalError (the engine has failed).
        """
        ...

    def abort(self, request: int) -> None:
        """Take a request's rows out before the next step; nothing more is delivered."""
        ...

    def stats(self) -> EngineStats:
        """The latest snapshot; reading it costs the loop nothing."""
        ...

    async def aclose(self, timeout_s: float | None = None) -> None:
        """Stop after the plans in flight, or after loading, which cannot be hurried; wait at most so long."""
        ...


class LocalEngine:
    """An Engine whose loop is a thread of this process."""

    def __init__(
        self,
        model: Model,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        calibration: Calibration | None = None,
    ) -> None:
        """calibration: None takes a default curve of step costs and measures nothing."""
        self.model = model
        self.limits = limits
        self._loop = EngineLoop(model, limits, clock, calibration)
        self._requests = itertools.count()
        self._started = False

    @property
    def status(self) -> Status:
        return self._loop.status

    @property
    def failure(self) -> BaseException | None:
        return self._loop.failure

    def start(self) -> None:
        self._started = True
        self._loop.start()

    async def wait_ready(self) -> None:
        loop = asyncio.get_running_loop()
        settled = loop.create_future()
        self._loop.when_settled(lambda: _call(loop, settle, settled, None))
        await settled
        if self.failure is not None:
            raise self.failure

    async def submit(self, chunks: Sequence[Chunk], terms: Terms = STANDARD) -> ChunkStream:
        check_submission(self.status, chunks, more=terms.more)
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        stream = ChunkStream(self, next(self._requests), len(chunks))

        def answered(refusal: PolychoirError | None) -> None:
            _call(loop, settle, answer, refusal)

        def deliver(end: Ended | PolychoirError) -> None:
            _call(loop, stream.put, outcome(end, self.model.info.sample_rate))

        self._loop.post(Submit(stream.request, chunks, terms, answered, deliver))
        try:
            await answer
        except asyncio.CancelledError:
            self.abort(stream.request)
            raise
        return stream

    def abort(self, request: int) -> None:
        if self.status == "ready":
            self._loop.post(Abort(request))

    def stats(self) -> EngineStats:
        return self._loop.stats

    async def aclose(self, timeout_s: float | None = None) -> None:
        if not self._started:
            return
        self._loop.stop()
        await asyncio.to_thread(self._loop.join, timeout_s)


def check_submission(status: Status, chunks: Sequence[Chunk], *, more: bool) -> None:
    """Raise what an engine of this status says to new chunks before it looks at its queue."""
    if not chunks:
        raise InternalError("this is a bug: a request without chunks")
    if status == "loading" and not more:
        raise Unavailable("the model is loading", code="loading", retry_after_s=LOADING_RETRY_S)
    if status in {"failed", "stopped"}:
        raise InternalError(f"the engine has {status}")


class ChunkStream:
    """The chunks of one submission in the order in which they end. Use as an async context manager."""

    def __init__(self, engine: Engine, request: int, chunks: int) -> None:
        self.request = request
        self._engine = engine
        self._left = chunks
        self._ends: asyncio.Queue[ChunkAudio | PolychoirError] = asyncio.Queue()  # at most one entry a chunk

    def put(self, end: ChunkAudio | PolychoirError) -> None:
        self._ends.put_nowait(end)

    async def __aenter__(self) -> ChunkStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave: whatever is not done yet is aborted."""
        if self._left:
            self._left = 0
            self._engine.abort(self.request)

    def __aiter__(self) -> AsyncIterator[ChunkAudio]:
        return self

    async def __anext__(self) -> ChunkAudio:
        """The next chunk that ended. Raises the first error; the other chunks are then aborted."""
        if not self._left:
            raise StopAsyncIteration
        end = await self._ends.get()
        self._left -= 1
        if isinstance(end, PolychoirError):
            self.close()
            raise end
        return end


def outcome(end: Ended | PolychoirError, sample_rate: int) -> ChunkAudio | PolychoirError:
    """What a loop delivered, as what a stream yields or raises."""
    if isinstance(end, PolychoirError):
        return end
    output, index = end.output, end.sequence.chunk.index
    if output.error is not None:
        return _own_error(output.error)
    if output.samples is None or len(output.samples) == 0:
        return InternalError(f"chunk {index} came back without audio")
    return ChunkAudio(
        index=index,
        samples=output.samples,
        sample_rate=sample_rate,
        # A row of known length had all its steps, even if its audio overtook the news of the last one.
        steps=end.sequence.chunk.work.steps or end.sequence.done_steps,
        queue_s=end.queue_s,
        run_s=end.run_s,
        decode_s=output.decode_s,
        codes=output.codes,
    )


def _own_error(error: Exception) -> PolychoirError:
    if isinstance(error, PolychoirError):
        return error
    wrapped = InternalError(f"a row failed: {error!r}")
    wrapped.__cause__ = error
    return wrapped


def settle(future: asyncio.Future[None], refusal: BaseException | None) -> None:
    """Tell whoever waits for an answer; they may have left."""
    if future.done():
        return
    if refusal is None:
        future.set_result(None)
    else:
        future.set_exception(refusal)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    """Call in the event loop; a loop that has been closed has nobody left to tell."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
