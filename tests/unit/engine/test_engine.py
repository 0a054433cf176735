"""The async face over a real loop and the fake model."""

from __future__ import annotations

import asyncio
import threading

import pytest

from polychoir.engine.engine import LocalEngine
from polychoir.errors import DeviceLost, InternalError, ModelLoadError, Overloaded, Unavailable
from polychoir.types import ModelInfo, SequenceOutput, Terms
from support.engines import CountingRunner, chunk, limits

INFO = ModelInfo("counting", "iterative", 24_000, ("*",))


class AutoRunner(CountingRunner):
    """Finishes each plan on a thread of its own as soon as `gate` opens."""

    def __init__(self, wake, gate, **fields):
        super().__init__(**fields)
        self.wake, self.gate = wake, gate

    def submit(self, plan):
        super().submit(plan)
        threading.Thread(target=self._finish).start()

    def _finish(self):
        self.gate.wait(5)
        self.finish()
        self.wake()


class Model:
    """Loads an AutoRunner; `broken` fails to load, `slow` waits for the gate first."""

    info = INFO
    frontend = None

    def __init__(self, broken=None, **fields):
        self.broken, self.fields = broken, fields
        self.gate = threading.Event()
        self.loading = threading.Event()
        self.loading.set()
        self.gate.set()
        self.runner = None

    def load(self, wake):
        self.loading.wait(5)
        if self.broken:
            raise self.broken
        self.runner = AutoRunner(wake, self.gate, **self.fields)
        return self.runner


@pytest.fixture
async def house():
    engines = []

    async def start(model, **changes):
        engine = LocalEngine(model, limits(**changes))
        engines.append(engine)
        engine.start()
        await engine.wait_ready()
        return engine

    yield start
    for engine in engines:
        await engine.aclose()
        assert engine.status == "stopped"


async def settle(condition):
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never happened")


async def test_chunks_come_back_as_they_end(house):
    engine = await house(Model())
    async with await engine.submit([chunk(index=0, steps=5), chunk(index=1, steps=1)]) as stream:
        got = [audio async for audio in stream]
    assert [(audio.index, audio.steps, len(audio.samples)) for audio in got] == [(1, 1, 4), (0, 5, 4)]
    assert got[0].sample_rate == 24_000 and got[1].run_s > 0
    stats = engine.stats()
    assert (stats.steps_total, stats.sequences_finished, stats.sequences_aborted) == (6, 2, 0)


async def test_leaving_a_stream_early_takes_its_rows_out(house):
    model = Model()
    engine = await house(model)
    async with await engine.submit([chunk(index=0, steps=1), chunk(index=1, steps=10_000)]) as stream:
        assert (await anext(stream)).index == 0
    await settle(lambda: engine.stats().running == 0 and engine.stats().sequences_aborted == 1)
    assert model.runner.dropped == [1]


async def test_a_cancelled_submit_leaves_nothing_behind(house):
    model = Model()
    engine = await house(model)
    stream = await engine.submit([chunk(steps=10_000)])
    task = asyncio.create_task(anext(stream))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stream.close()
    await settle(lambda: engine.stats().running == 0)


async def test_a_caller_cancelled_before_the_answer_leaves_no_rows(house):
    model = Model()
    engine = await house(model)
    for _ in range(20):
        task = asyncio.create_task(engine.submit([chunk(steps=10_000)]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await settle(lambda: engine.stats().sequences_aborted == 20 and engine.stats().running == 0)


async def test_a_request_without_chunks_is_a_bug_and_says_so(house):
    engine = await house(Model())
    with pytest.raises(InternalError):
        await engine.submit([])


async def test_a_model_that_calls_exit_has_failed():
    engine = LocalEngine(Model(broken=SystemExit(3)), limits())
    engine.start()
    with pytest.raises(SystemExit):
        await engine.wait_ready()
    assert engine.status == "failed"
    await engine.aclose()


async def test_the_first_error_ends_the_request_and_only_it(house):
    from polychoir.types import SequenceOutput

    def fail(plan):
        return [
            SequenceOutput(r.seq_id, error=ValueError("inner words"), epoch=r.epoch)
            for r in plan.rows
            if r.chunk.payload == "bad" and r.step == 1
        ]

    engine = await house(Model(fail=fail))
    bad = await engine.submit([chunk(index=0, steps=900), chunk(index=1, payload="bad")])
    good = await engine.submit([chunk(index=0, steps=4)])
    with pytest.raises(InternalError) as caught:
        await anext(bad)
    assert isinstance(caught.value.__cause__, ValueError)
    assert (await anext(good)).index == 0
    await settle(lambda: engine.stats().running == 0)


async def test_a_full_queue_refuses_before_anything_runs(house):
    model = Model()
    model.gate.clear()
    engine = await house(model, queue_limit=2, max_num_seqs=1, max_resident_seqs=1)
    running = await engine.submit([chunk()])
    await settle(lambda: engine.stats().running == 1)
    waiting = [await engine.submit([chunk()]) for _ in range(2)]
    with pytest.raises(Overloaded) as caught:
        await engine.submit([chunk()])
    assert 0.05 <= caught.value.retry_after_s < 1
    more = await engine.submit([chunk(index=7)], Terms(more=True))
    model.gate.set()
    for stream, index in [(running, 0), *((one, 0) for one in waiting), (more, 7)]:
        assert (await anext(stream)).index == index
    assert engine.stats().sequences_refused == 1


async def test_while_loading_it_says_so_and_when_to_come_back():
    model = Model()
    model.loading.clear()
    engine = LocalEngine(model, limits())
    engine.start()
    with pytest.raises(Unavailable) as caught:
        await engine.submit([chunk()])
    assert (caught.value.code, engine.status) == ("loading", "loading")
    model.loading.set()
    await engine.wait_ready()
    await engine.aclose()


async def test_a_model_that_does_not_load_tells_every_waiter():
    engine = LocalEngine(Model(broken=ModelLoadError("config.json is missing")), limits())
    waiting = [asyncio.create_task(engine.wait_ready()) for _ in range(2)]
    await asyncio.sleep(0)
    engine.start()
    for task in waiting:
        with pytest.raises(ModelLoadError, match=r"config\.json"):
            await task
    with pytest.raises(InternalError):
        await engine.submit([chunk()])
    await engine.aclose()
    assert engine.status == "failed"


async def test_stopping_leaves_nobody_waiting(house):
    model = Model()
    engine = await house(model)
    stream = await engine.submit([chunk(steps=100_000)])
    closing = asyncio.create_task(engine.aclose())
    with pytest.raises(InternalError):
        await anext(stream)
    await closing
    assert model.runner.closed


async def test_a_runner_that_breaks_the_loop_fails_everyone_with_an_error(caplog):
    class Broken(AutoRunner):
        def poll(self):
            raise MemoryError("the device has gone")

    class BrokenModel(Model):
        def load(self, wake):
            return Broken(wake, self.gate)

    engine = LocalEngine(BrokenModel(), limits())
    engine.start()
    with pytest.raises(MemoryError):
        await engine.wait_ready()
        await settle(lambda: engine.status == "failed")
        raise engine.failure
    with pytest.raises(InternalError):
        await engine.submit([chunk()])
    await engine.aclose()
    assert "this is a bug" in caplog.text


async def test_two_hundred_requests_at_once_all_come_back(house):
    engine = await house(Model(), max_num_seqs=8, max_resident_seqs=32, max_num_batched_tokens=80)

    async def one(i):
        async with await engine.submit([chunk(steps=1 + i % 5, index=i)]) as stream:
            return [audio.index async for audio in stream]

    assert await asyncio.gather(*(one(i) for i in range(200))) == [[i] for i in range(200)]
    assert engine.stats().avg_batch_size > 4


@pytest.mark.parametrize("how", ["row", "plan"])
async def test_a_lost_device_ends_the_engine_as_a_whole(how):
    def fail(plan):
        if how == "plan":
            raise DeviceLost("sticky")
        return [SequenceOutput(plan.rows[0].seq_id, error=DeviceLost("sticky"), epoch=plan.rows[0].epoch)]

    engine = LocalEngine(Model(fail=fail), limits())
    engine.start()
    await engine.wait_ready()
    ends = []
    engine._loop.when_ended(lambda: ends.append(engine.status))
    stream = await engine.submit([chunk(index=0), chunk(index=1)])
    with pytest.raises(DeviceLost, match="sticky"):
        await anext(stream)
    assert (engine.status, ends) == ("failed", ["failed"])
    assert isinstance(engine.failure, DeviceLost)
    await engine.aclose()


async def test_in_a_full_queue_a_giant_makes_way_and_is_told_when_to_come_again(house):
    model = Model()
    model.gate.clear()
    engine = await house(model, queue_limit=2, max_num_seqs=1, max_resident_seqs=1)
    running = await engine.submit([chunk()])
    await settle(lambda: engine.stats().running == 1)
    giant = await engine.submit([chunk(steps=900, index=0), chunk(steps=900, index=1)])
    small = await engine.submit([chunk()])
    with pytest.raises(Overloaded, match="standard queue is full") as caught:
        async for _ in giant:
            pass
    assert caught.value.retry_after_s > 0
    model.gate.set()
    for stream in (running, small):
        assert [audio.index async for audio in stream] == [0]
    await settle(lambda: engine.stats().sequences_finished == 2)
    assert engine.stats().sequences_refused == 2
    assert engine.stats().sequences_failed == 0
