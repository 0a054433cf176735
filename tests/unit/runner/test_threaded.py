"""The threaded runner: one result a plan, order on one thread, faults reported."""

from __future__ import annotations

import threading
import time

from polychoir.errors import InternalError
from polychoir.runner.cpu import cores, cpu_name
from polychoir.runner.threaded import Outbox, ThreadedRunner
from polychoir.types import Measured, PlannedRow, SequenceOutput, StepPlan, StepResult
from support.engines import chunk


class Stage:
    def __init__(self):
        self.log, self.closed = [], False
        self.barrier = None

    def run(self, plan):
        if self.barrier:
            self.barrier.wait(5)
        if plan.tokens < 0:
            raise ValueError("poison")
        time.sleep(0.002)
        self.log.append(plan.plan_id)
        return StepResult(plan.plan_id)

    def drop(self, seq_id):
        self.log.append(("drop", seq_id))

    def close(self):
        self.closed = True


def plan(plan_id, tokens=1):
    return StepPlan(plan_id, (PlannedRow(plan_id, 0, chunk()),), tokens)


def collect(runner, news, count):
    results = []
    while len(results) < count:
        assert news.wait(5)
        news.clear()
        results += runner.poll()
    return results


def test_one_thread_keeps_order_and_drops_behind_what_is_in_flight():
    news, stage = threading.Event(), Stage()
    runner = ThreadedRunner(stage, 1, Outbox(news.set))
    for i in range(5):
        runner.submit(plan(i))
    runner.drop(3)
    results = collect(runner, news, 5)
    assert [result.plan_id for result in results] == [0, 1, 2, 3, 4]
    assert all(result.run_s >= 0.002 for result in results)
    runner.close()
    assert stage.log == [0, 1, 2, 3, 4, ("drop", 3)] and stage.closed


def test_what_a_stage_raises_is_the_result_of_its_plan():
    news = threading.Event()
    runner = ThreadedRunner(Stage(), 1, Outbox(news.set))
    runner.submit(plan(0, tokens=-1))
    runner.submit(plan(1))
    bad, good = collect(runner, news, 2)
    assert isinstance(bad.error, ValueError) and good.error is None
    runner.close()


def test_threads_run_plans_at_the_same_time():
    news, stage = threading.Event(), Stage()
    stage.barrier = threading.Barrier(3)  # breaks unless all three run at once
    runner = ThreadedRunner(stage, 3, Outbox(news.set))
    for i in range(3):
        runner.submit(plan(i))
    assert {result.plan_id for result in collect(runner, news, 3) if result.error is None} == {0, 1, 2}
    runner.close()


class Timed(Stage):
    """A step takes a millisecond for each hundred tokens; `fails` makes a row of it fail."""

    def __init__(self, fails=False):
        super().__init__()
        self.fails, self.inside, self.most = fails, 0, 0
        self.lock = threading.Lock()

    def run(self, plan):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(plan.tokens / 1e5)
        with self.lock:
            self.inside -= 1
        error = InternalError("no voice") if self.fails else None
        return StepResult(plan.plan_id, (SequenceOutput(plan.rows[0].seq_id, error=error),))


TRIALS = tuple(chunk(tokens, 1) for tokens in (200, 1_000, 2_000))


def test_trials_are_timed_with_every_thread_at_it_and_leave_no_news():
    news, stage = threading.Event(), Timed()
    runner = ThreadedRunner(stage, 2, Outbox(news.set), trials=TRIALS)
    measured = runner.measure()
    assert [sample.tokens for sample in measured.samples] == [200, 1_000, 2_000]
    for sample in measured.samples:
        assert sample.tokens / 1e5 <= sample.seconds < sample.tokens / 1e5 + 0.02
    assert stage.most == 2
    assert not runner.poll() and not news.is_set()
    runner.close()


def test_a_slow_stage_is_timed_once(monkeypatch):
    monkeypatch.setattr("polychoir.runner.threaded.TRIAL_S", 0.0)
    stage = Stage()
    runner = ThreadedRunner(stage, 1, Outbox(lambda: None), trials=TRIALS)
    assert len(runner.measure().samples) == 3
    assert stage.log == [-1, -1, -1]
    runner.close()


def test_without_trials_or_with_one_that_fails_nothing_is_measured(caplog):
    for runner in (
        ThreadedRunner(Stage(), 1, Outbox(lambda: None)),
        ThreadedRunner(Timed(fails=True), 1, Outbox(lambda: None), trials=TRIALS),
    ):
        assert runner.measure() == Measured()
        runner.close()
    assert "a trial of 200 tokens failed: no voice" in caplog.text


def test_its_device_is_this_machines_processor():
    device = ThreadedRunner(Stage(), 3, Outbox(lambda: None)).device
    assert (device.kind, device.lag) == ("cpu", 0)
    assert device.name == f"{cpu_name()}, {cores()} cores, 3 threads"
    assert cpu_name().strip()
