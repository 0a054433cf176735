"""The threaded runner: one result a plan, order on one thread, faults reported."""

from __future__ import annotations

import threading
import time

from polychoir.runner.threaded import Outbox, ThreadedRunner
from polychoir.types import PlannedRow, StepPlan, StepResult
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
