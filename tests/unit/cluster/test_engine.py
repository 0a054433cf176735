"""WorkerEngine over real processes: as an engine, and when its workers die, hang or never come up."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from polychoir.cluster import engine as ce
from polychoir.cluster.engine import WorkerEngine
from polychoir.cluster.supervisor import Patience, WorkerSpec
from polychoir.cluster.watchdog import step_timeout_s
from polychoir.engine.engine import Engine, LocalEngine
from polychoir.engine.plan import limits_for
from polychoir.errors import InternalError, ModelLoadError, Overloaded, Unavailable
from polychoir.models.fake import FakeModel
from polychoir.models.registry import open_model
from polychoir.types import Chunk, ChunkAudio, ModelOptions, SpeechRequest, Terms, VoiceChoice
from support.misbehaving import NAME, environment
from support.serving import until

QUICK = Patience(first_pause_s=0.05, longest_pause_s=0.1)
SENTENCE = "Number {n} says a line that is long enough. "

Start = Callable[..., Awaitable[WorkerEngine]]


def fake(**extra: Any) -> FakeModel:
    model = open_model("fake", ModelOptions(extra={"fake_step_ms": 1.0, **extra}))
    assert isinstance(model, FakeModel)
    return model


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts engines of the misbehaving model; `extra` are its settings. All are closed at the end."""
    engines: list[WorkerEngine] = []

    async def begin(
        workers: int = 1,
        patience: Patience = QUICK,
        step_timeout_s: float | None = 30.0,
        queue_limit: int = 2_000,
        ready: bool = True,
        **extra: Any,
    ) -> WorkerEngine:
        options = ModelOptions(extra={"fake_step_ms": 1.0, "once": str(tmp_path / "once"), **extra})
        limits = replace(limits_for(fake().info), queue_limit=queue_limit)
        spec = WorkerSpec(NAME, options, limits, step_timeout_s, environment(tmp_path))
        engine = WorkerEngine(NAME, [spec] * workers, patience)
        engines.append(engine)
        engine.start()
        if ready:
            await asyncio.wait_for(engine.wait_ready(), 20)
        return engine

    yield begin
    for engine in engines:
        await engine.aclose(5.0)
        assert engine.status == "stopped"
        assert all(worker.process and worker.process.ended.done() for worker in engine.workers)


def chunks(n: int, text: str = "", sentences: int = 12) -> tuple[Chunk, ...]:
    request = SpeechRequest(str(n), text or SENTENCE.format(n=n) * sentences, n)
    return fake().frontend.prepare(request, VoiceChoice("auto")).chunks


async def say(engine: Engine, n: int, text: str = "", sentences: int = 12) -> list[ChunkAudio]:
    """Every chunk that came, as it came."""
    async with await engine.submit(chunks(n, text, sentences)) as stream:
        return [audio async for audio in stream]


def samples(audio: list[ChunkAudio]) -> list[np.ndarray[Any, Any]]:
    return [one.samples for one in sorted(audio, key=lambda one: one.index)]


def assert_same(got: list[list[ChunkAudio]], wanted: list[list[ChunkAudio]]) -> None:
    """Nothing lost, nothing doubled, bit for bit."""
    for mine, theirs in zip(got, wanted, strict=True):
        assert sorted(one.index for one in mine) == list(range(len(theirs)))
        for one, other in zip(samples(mine), samples(theirs), strict=True):
            np.testing.assert_array_equal(one, other)


async def undisturbed(count: int) -> list[list[ChunkAudio]]:
    """What an engine of this process says."""
    model = fake(fake_step_ms=0.0, fake_us_per_token=0.0)
    engine = LocalEngine(model, limits_for(model.info))
    engine.start()
    await engine.wait_ready()
    spoken = await asyncio.gather(*(say(engine, n) for n in range(count)))
    await engine.aclose()
    return spoken


async def test_a_worker_says_what_an_engine_of_this_process_says(start: Start) -> None:
    engine = await start()
    spoken = await asyncio.gather(*(say(engine, n) for n in range(12)))
    assert_same(spoken, await undisturbed(12))
    (first, *_), *_ = spoken
    assert (first.sample_rate, first.steps) == (24_000, 8)
    assert first.run_s > 0
    stats = engine.stats()
    rows = sum(map(len, spoken))
    assert (stats.sequences_finished, stats.steps_total, stats.running) == (rows, 8 * rows, 0)


async def test_leaving_early_takes_the_rows_out(start: Start) -> None:
    engine = await start(fake_step_ms=200.0)
    async with await engine.submit(chunks(1)):
        await until(lambda: engine.stats().running > 0)
    await until(lambda: engine.stats().sequences_aborted == len(chunks(1)) and engine.stats().running == 0)
    assert len(await say(engine, 2, sentences=1)) == 1


async def test_a_refusal_is_typed(start: Start) -> None:
    engine = await start(queue_limit=1, fake_step_ms=50.0)
    streams = [await engine.submit(chunks(1, sentences=1000))]
    with pytest.raises(Overloaded, match="queue is full") as caught:
        for n in range(400):
            streams.append(await engine.submit(chunks(n, sentences=1)))
    assert caught.value.retry_after_s >= 1.0
    await until(lambda: engine.stats().sequences_refused == 1)
    for stream in streams:
        stream.close()


async def test_a_row_that_fails_costs_its_own_request(start: Start) -> None:
    engine = await start(fake_fail_rate=0.5)
    spoken = await asyncio.gather(*(say(engine, n) for n in range(12)), return_exceptions=True)
    failed = [one for one in spoken if isinstance(one, InternalError)]
    assert 0 < len(failed) < 12
    assert all("a fake failure" in one.message for one in failed)
    assert all(isinstance(one, (list, InternalError)) for one in spoken)


async def test_what_a_worker_prints_is_not_taken_for_an_answer(start: Start) -> None:
    engine = await start()
    assert len(await say(engine, 1, "!print a lot of noise.")) == 1


@pytest.mark.parametrize("kills", [1, 2])
async def test_kill_9_under_load_loses_nothing_and_doubles_nothing(start: Start, kills: int) -> None:
    engine = await start(fake_step_ms=4.0)
    spoken = asyncio.gather(*(say(engine, n) for n in range(40)))
    for _ in range(kills):
        done = engine.stats().sequences_finished
        await until(lambda done=done: engine.status == "ready" and engine.stats().sequences_finished > done)
        os.kill(engine.workers[0].process.pid, signal.SIGKILL)
        await until(lambda: engine.status == "loading")
        with pytest.raises(Unavailable) as caught:
            await engine.submit(chunks(1))
        assert (caught.value.code, caught.value.retry_after_s) == ("loading", 2.0)
    assert_same(await asyncio.wait_for(spoken, 30), await undisturbed(40))
    assert engine.stats().sequences_finished >= sum(len(one) for one in spoken.result())


async def test_a_request_that_kills_every_worker_is_given_up(start: Start) -> None:
    engine = await start()
    with pytest.raises(Unavailable, match="lost") as caught:
        await asyncio.wait_for(say(engine, 1, "!die"), 20)
    assert (caught.value.code, caught.value.retry_after_s) == ("worker_lost", ce.LOST_RETRY_S)
    await asyncio.wait_for(engine.wait_ready(), 20)
    assert len(await say(engine, 2, sentences=1)) == 1


async def test_a_continued_request_waits_for_the_next_worker(start: Start) -> None:
    engine = await start()
    os.kill(engine.workers[0].process.pid, signal.SIGKILL)
    await until(lambda: engine.status == "loading")
    async with await asyncio.wait_for(engine.submit(chunks(1), Terms(more=True)), 20) as stream:
        assert len([audio async for audio in stream]) == len(chunks(1))


@pytest.mark.parametrize(
    ("text", "step_timeout_s", "patience", "says"),
    [
        ("!hang", 0.3, QUICK, "no step ended in time"),
        ("!lose", 30.0, QUICK, "its device is lost"),
        ("!hold", 30.0, replace(QUICK, silence_s=2.0), "has said nothing for 2 s: killed"),
    ],
)
async def test_a_worker_that_is_of_no_more_use_is_replaced(
    start: Start,
    caplog: pytest.LogCaptureFixture,
    text: str,
    step_timeout_s: float,
    patience: Patience,
    says: str,
) -> None:
    engine = await start(step_timeout_s=step_timeout_s, patience=patience)
    spoken = await asyncio.wait_for(asyncio.gather(say(engine, 1), say(engine, 2, text), say(engine, 3)), 30)
    assert [len(one) for one in spoken] == [len(chunks(1)), 1, len(chunks(3))]
    assert says in caplog.text


async def test_a_stopped_process_is_killed(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    engine = await start(patience=replace(QUICK, silence_s=1.5))
    os.kill(engine.workers[0].process.pid, signal.SIGSTOP)
    assert len(await asyncio.wait_for(say(engine, 1), 20)) == len(chunks(1))
    assert "killed by signal 9" in caplog.text


async def test_an_idle_worker_does_not_hang(start: Start) -> None:
    engine = await start(step_timeout_s=0.2)
    pid = engine.workers[0].process.pid
    await asyncio.sleep(1.0)
    await say(engine, 1, sentences=1)
    assert engine.workers[0].process.pid == pid


async def test_a_model_that_does_not_load_fails_at_once_with_its_own_error(start: Start) -> None:
    engine = await start(ready=False, on_load="fail")
    began = time.monotonic()
    with pytest.raises(ModelLoadError, match="no such checkpoint") as caught:
        await asyncio.wait_for(engine.wait_ready(), 20)
    assert caught.value.param == "model"
    assert time.monotonic() - began < 5
    assert (engine.status, engine.failure) == ("failed", caught.value)
    with pytest.raises(InternalError, match="the engine has failed"):
        await engine.submit(chunks(1))


async def test_a_worker_that_dies_while_loading_is_given_up_after_three(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await start(ready=False, on_load="die")
    with pytest.raises(InternalError, match="died 3 times while it was loading: exit code 7"):
        await asyncio.wait_for(engine.wait_ready(), 20)
    assert caplog.text.count("has ended: exit code 7") == 3


async def test_a_model_that_loaded_once_gets_three_more_chances(start: Start) -> None:
    engine = await start(on_load="fail_again")
    waiting = asyncio.create_task(say(engine, 1, sentences=200))
    await until(lambda: engine.stats().running > 0)
    os.kill(engine.workers[0].process.pid, signal.SIGKILL)
    with pytest.raises(InternalError, match=r"no worker is left: .*died 3 times"):
        await asyncio.wait_for(waiting, 20)
    assert engine.status == "failed"


async def test_two_workers_share_the_work_and_one_death_stops_nobody(start: Start) -> None:
    engine = await start(workers=2, fake_step_ms=3.0)
    await until(lambda: all(worker.status == "ready" for worker in engine.workers))
    assert engine.limits.queue_limit == 4_000
    spoken = asyncio.gather(*(say(engine, n) for n in range(40)))
    await until(lambda: all(worker.stats.sequences_finished for worker in engine.workers))
    os.kill(engine.workers[0].process.pid, signal.SIGKILL)
    await until(lambda: engine.workers[0].status == "loading")
    assert engine.status == "ready"
    assert len(await say(engine, 77, sentences=1)) == 1
    assert_same(await asyncio.wait_for(spoken, 30), await undisturbed(40))


async def test_a_worker_ends_with_its_parents_connection(start: Start) -> None:
    engine = await start()
    process = engine.workers[0].process
    engine.workers[0]._link._transport.abort()
    assert await asyncio.wait_for(process.ended, 5) in (84, -signal.SIGKILL)


async def test_closing_ends_whoever_waits(start: Start) -> None:
    engine = await start(fake_step_ms=200.0)
    stream = await engine.submit(chunks(1))
    await engine.aclose(5.0)
    with pytest.raises(InternalError, match="was stopped"):
        await anext(stream)


async def test_closing_while_loading_is_quick(start: Start) -> None:
    engine = await start(ready=False)
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await engine.aclose(5.0)
    assert time.monotonic() - began < 5


PARENT = """
import asyncio
from polychoir.cluster.engine import WorkerEngine
from polychoir.cluster.supervisor import WorkerSpec
from polychoir.engine.plan import limits_for
from polychoir.models.registry import open_model
from polychoir.types import ModelOptions

async def main():
    options = ModelOptions()
    limits = limits_for(open_model("fake", options).info)
    engine = WorkerEngine("fake", [WorkerSpec("fake", options, limits, 30.0, {})])
    engine.start()
    await engine.wait_ready()
    print(engine.workers[0].process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_worker_does_not_outlive_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    worker = psutil.Process(int(await asyncio.wait_for(parent.stdout.readline(), 20)))
    assert worker.is_running()
    parent.kill()
    await parent.wait()
    await until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, 5.0)


async def test_a_pause_of_this_process_is_no_silence_of_its_workers(start: Start) -> None:
    engine = await start(patience=replace(QUICK, silence_s=1.0))
    pid = engine.workers[0].process.pid
    time.sleep(2.5)  # the whole process stands still, as in a debugger
    await asyncio.sleep(0.6)
    assert len(await say(engine, 1)) == len(chunks(1))
    assert engine.workers[0].process.pid == pid


async def test_a_worker_that_takes_nothing_keeps_nobody_from_the_others(start: Start) -> None:
    engine = await start(workers=2)
    for worker in engine.workers:
        link = worker._link
        assert link is not None
        link.writable.clear()
        for n in range(4):
            await asyncio.wait_for(say(engine, n, sentences=1), 5)
        link.writable.set()
    for worker in engine.workers:
        worker._link.writable.clear()
    waiting = asyncio.create_task(say(engine, 9, sentences=1))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    engine.workers[1]._link.writable.set()
    await asyncio.wait_for(waiting, 5)


async def test_without_a_setting_the_worker_knows_how_long_a_step_may_take(start: Start) -> None:
    engine = await start(step_timeout_s=None)
    assert len(await say(engine, 1)) == len(chunks(1))
    assert (step_timeout_s("cpu"), step_timeout_s("large_gpu"), step_timeout_s("small_gpu")) == (300, 30, 30)
