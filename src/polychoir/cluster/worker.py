"""A worker process: one model on one device, with the engine loop of every other engine, behind a socket.

Run by a supervisor as `python -m polychoir.cluster.worker`. It needs no web framework and no settings: the
first record says all. It ends when its socket closes, and ends itself when its engine has failed, because a
broken device is cured by nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time

import msgspec
import numpy as np

from polychoir.cluster import messages as m
from polychoir.cluster.exits import ALONE, DEVICE_LOST, ENGINE_FAILED, NOT_LOADED
from polychoir.cluster.frames import Frames, join
from polychoir.cluster.postbox import LogPost, Postbox
from polychoir.cluster.process import take_socket
from polychoir.cluster.watchdog import Watchdog, step_timeout_s
from polychoir.engine import loop as engine
from polychoir.engine.core import EngineStats
from polychoir.engine.engine import outcome
from polychoir.engine.sequence import Ended
from polychoir.errors import DeviceLost, InternalError, ModelLoadError, Overloaded, PolychoirError
from polychoir.models.base import Model
from polychoir.models.registry import open_model

REPORT_S = 0.1
BEAT_S = 1.0
LAST_WORDS_S = 2.0
SWITCH_S = 0.0005
"""Python's own 5 ms is several steps of a fast device: so long could a thread that packs audio keep the
thread that starts steps waiting."""

_log = logging.getLogger(__name__)


class Link(Frames):
    """The worker's end. While the parent does not take what was made, no more work is taken."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.resume_reading()


class Worker:
    """Translates between the socket and one EngineLoop. Lives in the event loop of the main thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.link = Link(self._on_frame)
        self.exit: asyncio.Future[int] = loop.create_future()
        self.postbox = Postbox(loop)
        self._model: Model | None = None
        self._engine: engine.EngineLoop | None = None
        self._step_timeout_s: float | None = None
        self._reported: EngineStats | None = None
        self._reported_at = 0.0
        self._stopping = False

    async def run(self) -> int:
        """Serve until the end; gives the exit code."""
        ticks = asyncio.create_task(self._tick())
        alone = asyncio.create_task(self.link.closed.wait())
        await asyncio.wait((self.exit, alone), return_when=asyncio.FIRST_COMPLETED)
        ticks.cancel()
        if not self.exit.done():
            return ALONE
        self.link.close()
        await asyncio.wait((alone,), timeout=LAST_WORDS_S)
        return self.exit.result()

    # -- from the parent -------------------------------------------------------------------------

    def _on_frame(self, head: memoryview, tail: memoryview) -> None:
        match m.decode_to_worker(head):
            case m.Open() as record:
                self._open(record)
            case m.Submit() as record:
                self._submit(record, tail)
            case m.Abort(request):
                self._running().post(engine.Abort(request))
            case m.Stop():
                self._stopping = True
                self._running().stop()

    def _open(self, record: m.Open) -> None:
        try:
            self._model = open_model(record.reference, record.options)
        except PolychoirError as error:
            self._not_loaded(error)
            return
        loop = self._engine = engine.EngineLoop(
            self._model, record.limits, time.monotonic, record.calibration
        )
        self._step_timeout_s = record.step_timeout_s
        loop.when_settled(lambda: self.postbox.post(self._settled))
        loop.when_ended(lambda: self.postbox.post(self._ended))
        loop.start()

    def _submit(self, record: m.Submit, tail: memoryview) -> None:
        request = record.request

        def answer(refusal: PolychoirError | None) -> None:
            self.postbox.post(self._answer, request, refusal)

        def deliver(end: Ended | PolychoirError) -> None:
            self.postbox.post(self._deliver, request, end)

        try:
            chunks = m.unpack_submission(record, tail)
            self._running().post(engine.Submit(request, chunks, record.terms, answer, deliver))
        except Overloaded as refusal:
            answer(refusal)
        except (msgspec.MsgspecError, ImportError, AttributeError) as error:
            answer(InternalError(f"this is a bug: a row came apart on its way: {error!r}"))

    def _running(self) -> engine.EngineLoop:
        if self._engine is None:
            raise InternalError("this is a bug: the first record was not Open")
        return self._engine

    # -- to the parent ---------------------------------------------------------------------------

    def _settled(self) -> None:
        failure = self._running().failure
        if failure is not None:
            self._not_loaded(failure)
            return
        device = self._running().device
        assert device is not None
        Watchdog(self._running(), self._step_timeout_s or step_timeout_s(device.kind)).start()
        self._send(m.Settled())

    def _not_loaded(self, error: BaseException) -> None:
        if not isinstance(error, PolychoirError):
            cause = error
            error = ModelLoadError(f"the model did not load: {error!r}")
            error.__cause__ = cause
        self._send(m.Settled(m.to_fault(error)))
        self._leave(NOT_LOADED)

    def _ended(self) -> None:
        """The loop has ended. What the requests inside are told from now on must not reach the parent: it
        sends them to another worker."""
        if self._stopping:
            self._leave(0)
            return
        self._leave(DEVICE_LOST if isinstance(self._running().failure, DeviceLost) else ENGINE_FAILED)

    def _leave(self, code: int) -> None:
        self.link.close()
        if not self.exit.done():
            self.exit.set_result(code)

    def _answer(self, request: int, refusal: PolychoirError | None) -> None:
        self._send(m.Answer(request, None if refusal is None else m.to_fault(refusal)))

    def _deliver(self, request: int, end: Ended | PolychoirError) -> None:
        assert self._model is not None
        self._report_idle()
        audio = outcome(end, self._model.info.sample_rate)
        if isinstance(audio, PolychoirError):
            self._send(m.Failed(request, m.to_fault(audio)))
            return
        record = m.Ended(
            request, audio.index, audio.sample_rate, audio.steps,
            audio.queue_s, audio.run_s, audio.decode_s, audio.codes,
        )  # fmt: skip
        samples = np.ascontiguousarray(audio.samples, np.float32)
        self.link.send(m.encode(record), (samples.view(np.uint8).data,))

    def _send(self, record: m.FromWorker) -> None:
        self.link.send(m.encode(record))

    # -- how it stands ---------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            stats = EngineStats() if self._engine is None else self._engine.stats
            if stats is not self._reported or time.monotonic() - self._reported_at >= BEAT_S:
                self._report(stats)
            await asyncio.sleep(REPORT_S)

    def _report_idle(self) -> None:
        """Whoever gets the last answer may look at the numbers at once."""
        stats = self._running().stats
        if stats is not self._reported and not stats.waiting + stats.running + stats.decoding:
            self._report(stats)

    def _report(self, stats: EngineStats) -> None:
        self._reported, self._reported_at = stats, time.monotonic()
        self._send(m.Report(stats))


async def _serve(arguments: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    worker = Worker(loop)
    logging.basicConfig(level=logging.INFO, handlers=[LogPost(worker.postbox, worker.link)], force=True)
    await join(worker.link, take_socket(arguments.fd, arguments.port))
    return await worker.run()


def main() -> None:
    """Never returns: what is left of a model's threads is not waited for."""
    parser = argparse.ArgumentParser(prog="polychoir.cluster.worker", description=__doc__)
    parser.add_argument("--fd", type=int, help="a connected socket that was handed over")
    parser.add_argument("--port", type=int, help="port of the parent on this machine")
    arguments = parser.parse_args()
    # The parent decides when this ends: a terminal's Ctrl-C, or a service manager that signals everybody,
    # must not take it away while answers are still being finished.
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    code = asyncio.run(_serve(arguments))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
