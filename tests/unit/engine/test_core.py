"""Scheduler and core together, driven by hand: joins, leaves, aborts, faults, rows of unknown length."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polychoir.engine.core import EngineCore
from polychoir.engine.cost import UNKNOWN_STEPS, remaining_tokens
from polychoir.engine.scheduler import Scheduler
from polychoir.errors import CannotBatch, DeadlineExceeded, DeviceLost, InternalError
from polychoir.types import SequenceOutput, StepResult, Work
from support.engines import Clock, CountingRunner, limits, row


class House:
    """An engine core with everything in reach."""

    def __init__(self, runner=None, **changes):
        self.clock = Clock()
        self.runner = runner or CountingRunner()
        self.ended = []
        self.core = EngineCore(Scheduler(limits(**changes)), self.runner, self.clock, self.ended.append)

    def add(self, *rows):
        for one in rows:
            self.core.add(one)

    def step(self):
        """One turn: plan, let the oldest plan finish, settle."""
        self.clock.now += 1.0
        self.core.step()
        if self.runner.pending:
            self.runner.finish()
            self.core.step()

    def run(self, turns=200):
        for _ in range(turns):
            if not (self.core.scheduler.waiting or self.core.scheduler.running):
                return
            self.step()
        raise AssertionError("the house did not empty")

    def planned(self):
        return [[(r.seq_id, r.step) for r in plan.rows] for plan in self.runner.plans]


def test_rows_join_and_leave_between_steps():
    house = House()
    house.add(row(0, steps=3), row(1, steps=1))
    house.step()
    house.add(row(2, steps=2))
    house.run()
    assert house.planned() == [[(0, 0), (1, 0)], [(0, 1), (2, 0)], [(0, 2), (2, 1)]]
    assert [(e.sequence.seq_id, e.output.samples[0]) for e in house.ended] == [(1, 1), (0, 0), (2, 2)]


def test_a_row_that_is_being_prepared_lets_others_pass():
    house = House(CountingRunner(unprepared={0, 1}))
    house.add(row(0, steps=1), row(1, steps=1), row(2, steps=1))
    assert house.core.scheduler.waiting_by_tier["standard"] == 3
    house.step()
    assert house.planned() == [[(2, 0)]]
    house.runner.prepared(0)
    house.runner.prepared(1, InternalError("a bad clip"))
    house.step()
    assert house.core.stats.waiting == 1
    house.run()
    assert house.planned() == [[(2, 0)], [(0, 0)]]
    assert [e.sequence.seq_id for e in house.ended if e.output.error is not None] == [1]
    assert house.core.scheduler.backlog_tokens == 0


def test_graph_use_and_clips_are_counted():
    house = House(CountingRunner(unprepared={0, 1}))
    house.add(row(0, steps=1), row(1, steps=1))
    house.runner.ready.append(StepResult(None, prepared=(0,), encoded=1))
    house.runner.ready.append(StepResult(None, prepared=(1,)))
    house.core.step()
    house.core.step()
    (plan,) = house.runner.plans
    house.runner.pending.clear()
    house.runner.ready.append(StepResult(plan.plan_id, graph="hit", padded_tokens=5))
    house.core.step()
    stats = house.core.stats
    assert (stats.clips_prepared, stats.clips_encoded) == (2, 1)
    assert (stats.graph_steps, stats.padded_tokens_total) == ({"hit": 1}, 5)


def test_a_lost_device_ends_the_loop_at_once():
    house = House()
    house.add(row(0), row(1))
    house.core.step()
    house.runner.ready.append(StepResult(0, error=DeviceLost("gone")))
    with pytest.raises(DeviceLost, match="gone"):
        house.core.step()


def test_a_row_that_leaves_while_it_is_prepared_is_dropped_and_never_runs():
    house = House(CountingRunner(unprepared={0}))
    house.add(row(0))
    house.core.abort(0)
    house.runner.prepared(0)
    house.step()
    assert (house.runner.plans, house.runner.dropped) == ([], [0])
    assert house.core.scheduler.waiting_by_tier["standard"] == 0


def test_resident_tokens_are_bounded():
    house = House(max_resident_tokens=25, max_num_batched_tokens=1_000)
    house.add(*(row(i, tokens=10, steps=2) for i in range(3)))
    house.run()
    assert house.planned() == [[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(2, 0)], [(2, 1)]]
    assert house.core.scheduler.resident_tokens == 0


def test_paused_rows_keep_their_slot_and_newcomers_wait_for_one():
    house = House(max_num_seqs=1, max_resident_seqs=1, max_num_batched_tokens=10)
    house.add(row(0, steps=2), row(1, steps=1))
    house.run()
    assert house.planned() == [[(0, 0)], [(0, 1)], [(1, 0)]]


def test_two_plans_in_flight_carry_the_next_step_of_the_same_rows():
    house = House(max_concurrent_plans=2, steps_ahead=2)
    house.add(row(0, steps=3), row(1, steps=3))
    house.core.step()
    assert house.planned() == [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]
    house.run()
    assert len(house.runner.plans) == 3
    assert {e.sequence.seq_id for e in house.ended} == {0, 1}


def test_an_abort_while_waiting_costs_no_step_and_no_slot():
    house = House(max_num_seqs=1, max_resident_seqs=1)
    house.add(row(0, steps=1), row(1, steps=1))
    house.core.abort(1)
    house.run()
    assert house.planned() == [[(0, 0)]]
    assert house.runner.dropped == []
    assert house.core.stats.sequences_aborted == 1


def test_an_abort_in_flight_frees_the_slot_and_silences_the_result():
    house = House()
    house.add(row(0, steps=1), row(1, steps=1))
    house.core.step()
    house.core.abort(0)
    house.runner.finish()
    house.core.step()
    assert house.runner.dropped == [0]
    assert [e.sequence.seq_id for e in house.ended] == [1]
    assert house.core.scheduler.running == house.core.scheduler.decoding == {}


def test_a_row_with_its_own_error_fails_alone():
    own = InternalError("not a number")
    runner = CountingRunner(
        fail=lambda plan: [
            SequenceOutput(r.seq_id, error=own, epoch=r.epoch) for r in plan.rows if r.seq_id == 1
        ]
    )
    house = House(runner)
    house.add(row(0), row(1), row(2))
    house.run()
    assert {e.sequence.seq_id: e.output.error for e in house.ended} == {0: None, 1: own, 2: None}
    assert house.core.stats.sequences_failed == 1


def poisoned(seq_id):
    def fail(plan):
        if any(planned.seq_id == seq_id for planned in plan.rows):
            raise ZeroDivisionError("poison")
        return ()

    return fail


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_poison_row_is_found_and_fails_alone(ahead):
    house = House(CountingRunner(fail=poisoned(1)), max_concurrent_plans=ahead, steps_ahead=ahead)
    house.add(row(0), row(1), row(2))
    house.run()
    errors = {e.sequence.seq_id: e.output.error for e in house.ended}
    assert errors[0] is None and errors[2] is None
    assert isinstance(errors[1], InternalError) and isinstance(errors[1].__cause__, ZeroDivisionError)
    assert len(house.ended) == 3
    rows = [r for plan in house.runner.plans for r in plan.rows if r.seq_id == 0]
    last = max(r.epoch for r in rows)
    assert last >= 1 and [r.step for r in rows if r.epoch == last] == [0, 1, 2], "it starts again from step 0"


def test_a_poison_row_is_found_by_halves():
    """Of 64 rows one is at fault: each failure halves the suspects, and the rest are soon together again."""
    house = House(
        CountingRunner(fail=poisoned(37)), max_num_seqs=64, max_num_batched_tokens=1_000, max_resident_seqs=64
    )
    house.add(*(row(i, steps=4) for i in range(64)))
    house.run()
    assert [e.sequence.seq_id for e in house.ended if e.output.error is not None] == [37]
    assert len(house.ended) == 64
    suspected = [len(plan.rows) for plan in house.runner.plans if 37 in {r.seq_id for r in plan.rows}]
    assert suspected == [64, 32, 16, 8, 4, 2, 1]
    assert len(house.runner.plans) < 30
    assert house.core.scheduler.backlog_tokens == 0


def test_rows_that_cannot_run_together_run_one_by_one():
    def fail(plan):
        if len(plan.rows) > 1:
            raise CannotBatch("one at a time")
        return ()

    house = House(CountingRunner(fail=fail))
    house.add(row(0, steps=2), row(1, steps=2), row(2, steps=1))
    house.run()
    assert all(e.output.error is None for e in house.ended) and len(house.ended) == 3
    assert [len(plan.rows) for plan in house.runner.plans] == [3, 1, 1, 1, 1, 1]


def test_a_row_past_its_timeout_costs_no_step():
    house = House(max_num_seqs=1)
    late = row(1, steps=1)
    late.expires_at = 2.5
    house.add(row(0, steps=3), late)
    house.run()
    assert [r for plan in house.runner.plans for r in plan.rows if r.seq_id == 1] == []
    (end,) = [e for e in house.ended if e.sequence.seq_id == 1]
    assert isinstance(end.output.error, DeadlineExceeded) and end.output.error.param == "timeout"
    assert (end.at, end.queue_s) == (3.0, 2.0)
    assert house.core.stats.waiting_by_tier["standard"] == 0


def test_a_running_row_past_its_timeout_is_cut():
    house = House()
    late = row(0, steps=100)
    late.expires_at = 5.0
    house.add(late, row(1, steps=1))
    house.run()
    assert len([p for p in house.runner.plans if any(r.seq_id == 0 for r in p.rows)]) == 4
    assert house.runner.dropped == [0]


def test_rows_that_end_in_time_are_not_kept_until_their_timeout():
    house = House()
    for number in range(1_000):
        one = row(number, steps=1)
        one.expires_at = 1e6
        house.add(one)
        house.step()
    assert len(house.ended) == 1_000
    assert len(house.core.scheduler._expiring) <= 64


def test_nothing_is_planned_until_as_many_wait_as_a_test_wants():
    house = House()
    house.core.scheduler.hold_until = 3
    house.add(row(0, steps=1), row(1, steps=1))
    house.core.step()
    assert house.runner.plans == []
    house.add(row(2, steps=1))
    house.run()
    house.add(row(3, steps=1))
    house.run()
    assert [[r.seq_id for r in plan.rows] for plan in house.runner.plans] == [[0, 1, 2], [3]]


def test_a_row_of_unknown_length_runs_until_its_runner_ends_it():
    house = House(CountingRunner(ends={0: 6}))
    house.add(row(0, steps=None))
    house.run()
    assert len(house.runner.plans) == 7
    assert house.ended[0].output.error is None


def test_times_are_measured_from_arrival_to_first_step_to_last():
    house = House(max_num_seqs=1, max_resident_seqs=1)
    house.add(row(0, steps=2), row(1, steps=2))
    house.run()
    second = house.ended[1]
    assert (second.sequence.arrived_at, second.queue_s, second.run_s) == (1.0, 2.0, 1.0)


def test_counters_say_what_ran():
    house = House()
    house.add(row(0, 10, 3), row(1, 20, 1))
    house.run()
    stats = house.core.stats
    assert (stats.steps_total, stats.batches_dispatched, stats.rows_dispatched, stats.tokens_total) == (
        4,
        3,
        4,
        50,
    )
    assert stats.avg_batch_size == pytest.approx(4 / 3)
    assert (stats.waiting, stats.running, stats.plans_in_flight, stats.sequences_finished) == (0, 0, 0, 2)


def test_where_a_plan_takes_one_item_a_batch_is_what_runs_together():
    house = House(max_num_seqs=1, max_concurrent_plans=3, max_resident_seqs=4)
    house.add(*(row(i, steps=1) for i in range(3)))
    house.core.step()
    stats = house.core.stats
    assert (stats.batches_dispatched, stats.rows_dispatched) == (3, 1 + 2 + 3)


def test_work_left_is_known_exactly():
    assert remaining_tokens(Work(30, 8), 3) == 150
    assert remaining_tokens(Work(30, 8), 8) == 0
    assert remaining_tokens(Work(30, None), 0) == 30 * UNKNOWN_STEPS


@pytest.mark.parametrize("tokens", [10, 200])
def test_what_a_failed_plan_left_in_flight_is_void(tokens):
    """Step 1 comes back well after step 0 failed: its output is of a run that no longer counts."""

    def fail(plan):
        if plan.plan_id == 0:
            raise ZeroDivisionError("poison")
        return ()

    house = House(
        CountingRunner(fail=fail), max_concurrent_plans=2, steps_ahead=2, max_num_batched_tokens=500
    )
    house.add(row(0, tokens, steps=2), row(1, tokens, steps=2))
    house.core.step()
    house.runner.finish()
    house.runner.finish()
    house.run()
    assert [(e.sequence.seq_id, e.output.epoch, e.output.error) for e in house.ended] == [
        (0, 1, None),
        (1, 1, None),
    ]
    assert [e.sequence.done_steps for e in house.ended] == [2, 2]


def test_rows_that_wait_for_their_audio_hold_their_slots():
    house = House(max_num_seqs=2, max_resident_seqs=3)
    house.add(*(row(i, steps=1) for i in range(6)))
    held = []
    for _ in range(4):
        house.core.step()
        while house.runner.pending:
            house.runner.finish()
            result = house.runner.ready.pop()
            held += result.outputs
            house.runner.ready.append(replace(result, outputs=()))
        house.core.step()
    assert [r.seq_id for plan in house.runner.plans for r in plan.rows] == [0, 1, 2]
    assert (house.core.stats.decoding, house.core.stats.waiting) == (3, 3)
    house.runner.ready.append(StepResult(None, tuple(held)))
    house.core.step()
    house.run()
    assert sorted(e.sequence.seq_id for e in house.ended) == list(range(6))


def test_the_backlog_is_what_is_not_planned_yet():
    house = House()
    scheduler = house.core.scheduler
    house.add(row(0, 10, 3), row(1, 20, 4), row(2, 100, 1, tier="batch"))
    assert scheduler.backlog_tokens == 30 + 80 + 100
    assert scheduler.waiting_by_tier == {"standard": 2, "batch": 1}
    house.step()
    assert scheduler.backlog_tokens == 30 + 80 + 100 - 30
    assert house.core.stats.waiting_by_tier["batch"] == 1
    house.core.abort(2)
    house.core.abort(1)
    assert scheduler.backlog_tokens == 20
    house.run()
    assert scheduler.backlog_tokens == 0


def test_whoever_is_told_of_an_end_finds_it_counted():
    house = House()
    seen = []
    house.core._deliver = lambda ended: seen.append(house.core.stats.sequences_finished)
    house.add(row(0, steps=1), row(1, steps=1))
    house.run()
    assert seen == [2, 2]
