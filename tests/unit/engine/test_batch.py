"""Who is in the next step: room, order, pauses, ageing, fairness. One token takes a millisecond here."""

from __future__ import annotations

import pytest

from polychoir.engine.batch import AGE_S, CALM_S, PASSES
from polychoir.engine.cost import StepCost
from polychoir.engine.scheduler import Scheduler
from polychoir.engine.sequence import Urgency
from polychoir.types import SequenceOutput, StepResult
from support.engines import limits, row, urgent

FIRST, LISTENING, WAITING, IDLE = Urgency
COST = StepCost(host_s=1e-3, per_token_s=1e-4)


def house(*rows, cost=COST, **changes):
    scheduler = Scheduler(limits(**changes), cost)
    for one in rows:
        scheduler.add(one)
    return scheduler


def step(scheduler, now=0.0):
    """Ids of the rows of one step that is over at once."""
    plan = scheduler.schedule(now)
    if plan is None:
        return []
    last = [planned for planned in plan.rows if planned.step + 1 == planned.chunk.work.steps]
    outputs = tuple(SequenceOutput(planned.seq_id, epoch=planned.epoch) for planned in last)
    scheduler.complete(StepResult(plan.plan_id, outputs), now)
    return [planned.seq_id for planned in plan.rows]


def steps(scheduler, count, now=0.0, step_s=0.0):
    return [step(scheduler, now + number * step_s) for number in range(count)]


# -- room ----------------------------------------------------------------------------------------


def test_rows_are_taken_in_order_until_the_tokens_are_spent():
    assert step(house(row(0, 40), row(1, 40), row(2, 40), row(3, 20))) == [0, 1, 3]


def test_a_row_larger_than_the_budget_runs_alone_and_is_not_starved():
    assert steps(house(row(0, 1_000, 2), row(1, 10, 2)), 4) == [[0], [0], [1], [1]]


def test_one_that_never_fits_stops_being_passed_over():
    scheduler = house(row(0, 60, 10_000), row(1, 90, 1), max_num_seqs=2)
    for number in range(2, 200):
        scheduler.add(row(number, 30, 1))
    seen = [step(scheduler) for _ in range(PASSES + 2)]
    assert seen[:PASSES] == [[0, number] for number in range(2, PASSES + 2)]
    assert seen[PASSES] == [0], "nobody joins any more until it has run"
    scheduler.abort(0)
    assert step(scheduler) == [1]


def test_max_num_seqs_bounds_the_rows():
    assert step(house(*(row(i, 1) for i in range(9)), max_num_seqs=3)) == [0, 1, 2]


def test_a_plan_holds_one_bucket_and_buckets_take_turns():
    scheduler = house(row(0, bucket=32), row(1, bucket=64), row(2, bucket=32))
    assert steps(scheduler, 7) == [[0, 2], [1], [0, 2], [1], [0, 2], [1], []]


def test_newcomers_of_one_bucket_do_not_starve_another():
    scheduler = house(row(0, 10, 5, bucket=64))
    step(scheduler)
    ran = 0
    for number in range(1, 12):
        scheduler.add(row(number, 10, 3, bucket=32))
        ran += step(scheduler) == [0]
    assert ran == 4


def test_slots_are_kept_for_those_who_wait_to_hear_anything():
    changes = {"max_num_seqs": 4, "max_resident_seqs": 8, "max_num_batched_tokens": 1_000}
    scheduler = house(*(urgent(i, LISTENING, 9.0 + i, steps=50) for i in range(9)), **changes)
    for number in range(10, 14):
        scheduler.add(urgent(number, FIRST, 1.0, steps=3))
    ran = steps(scheduler, 3)
    assert all(set(range(10, 14)) == set(one) for one in ran)


# -- order ---------------------------------------------------------------------------------------


def test_a_first_chunk_goes_before_later_ones_and_those_before_idle_ones():
    rows = [urgent(0, IDLE, 9e9), urgent(1, WAITING, 4.0), urgent(2, LISTENING, 9.0), urgent(3, FIRST, 0.3)]
    scheduler = house(*rows, max_num_seqs=1)
    assert [step(scheduler)[0] for _ in range(12)] == [3] * 3 + [1] * 3 + [2] * 3 + [0] * 3


def test_a_listener_who_is_about_to_run_dry_goes_before_who_waits_for_a_whole():
    scheduler = house(urgent(0, WAITING, 0.5), urgent(1, LISTENING, 1.5), max_num_seqs=1)
    assert [one for [one] in steps(scheduler, 4)] == [1, 1, 1, 0]


def test_a_pressing_piece_goes_before_a_first_one_with_more_time():
    scheduler = house(urgent(0, FIRST, 0.3), urgent(1, LISTENING, 0.1), max_num_seqs=1)
    assert step(scheduler) == [1]


def test_rows_make_way_for_a_first_chunk_and_lose_nothing():
    scheduler = house(*(urgent(i, LISTENING, 30.0, tokens=30, steps=9) for i in range(3)))
    ran = step(scheduler)
    started = len(scheduler.running)
    scheduler.add(urgent(9, FIRST, 0.3, tokens=80, steps=5))
    first = steps(scheduler, 5)
    assert first == [[9]] * 5
    assert len(scheduler.running) == started > 0, "those that pause keep their slots"
    ran += [seq_id for one in steps(scheduler, 40) for seq_id in one]
    assert [ran.count(number) for number in range(3)] == [9] * 3, "each has all of its steps, none twice"


def test_a_row_with_few_steps_left_is_not_made_to_pause():
    scheduler = house(urgent(0, LISTENING, 30.0, tokens=60, steps=4))
    step(scheduler)
    scheduler.add(urgent(1, FIRST, 0.3, tokens=60, steps=4))
    assert steps(scheduler, 4) == [[0], [0], [0], [1]]


def test_a_first_chunk_that_is_too_late_lets_those_pass_that_are_not():
    scheduler = house(urgent(0, FIRST, 0.001), urgent(1, FIRST, 0.3), max_num_seqs=1)
    assert [one for [one] in steps(scheduler, 6)] == [1, 1, 1, 0, 0, 0]
    assert scheduler.backlog_tokens == 0


def test_of_those_that_are_too_late_the_short_go_first():
    rows = [urgent(0, FIRST, 0.0, steps=40), urgent(1, FIRST, 0.0, steps=2)]
    assert step(house(*rows, max_num_seqs=1), now=1.0) == [1]


def test_idle_rows_run_beside_a_listener_only_up_to_their_share():
    busy = house(*(urgent(i, IDLE, 9e9, steps=9) for i in range(50)), max_num_seqs=50, max_resident_seqs=50)
    busy.limits = busy.batch.limits = limits(
        max_num_seqs=50, max_resident_seqs=50, max_num_batched_tokens=400
    )
    alone = len(step(busy))
    assert alone == 40, "nobody listens: as large as may be"
    busy.add(urgent(99, FIRST, 0.3))
    assert len(step(busy)) < 10


def test_after_a_listener_has_gone_for_long_steps_are_large_again():
    scheduler = house(
        urgent(0, FIRST, 0.3, steps=1), max_num_seqs=50, max_num_batched_tokens=400, max_resident_seqs=90
    )
    step(scheduler)
    for number in range(1, 60):
        scheduler.add(urgent(number, WAITING, 1_000.0, steps=99))
    assert len(step(scheduler, now=1.0)) < 40
    assert len(step(scheduler, now=1.0 + CALM_S)) == 40


# -- waiting never loses -------------------------------------------------------------------------


@pytest.mark.parametrize("urgency", [LISTENING, WAITING, IDLE])
def test_what_has_been_late_for_long_runs_however_many_are_more_urgent(urgency):
    scheduler = house(urgent(0, urgency, 1.0), max_num_seqs=1)
    ran = []
    for number in range(1, 40):
        now = number * 1.0
        scheduler.add(urgent(number, FIRST, now + 0.3, steps=1, arrived_at=now))
        ran += [now] * (step(scheduler, now) == [0])
    if urgency is not LISTENING:  # a listener's is pressing long before
        assert AGE_S < ran[0] <= AGE_S + 2.0
    assert ran


# -- fairness ------------------------------------------------------------------------------------


def test_at_equal_urgency_the_least_served_tenant_goes_first():
    scheduler = house(*(urgent(i, IDLE, 9e9, tenant="many", steps=1) for i in range(8)), max_num_seqs=1)
    assert steps(scheduler, 4) == [[0], [1], [2], [3]]
    for number in range(8, 11):
        scheduler.add(urgent(number, IDLE, 9e9, tenant="few", steps=1))
    assert [one for [one] in steps(scheduler, 6)] == [4, 8, 5, 9, 6, 10]


def test_fairness_yields_to_a_deadline_while_all_can_be_in_time():
    rows = [urgent(0, WAITING, 50.0, tenant="b"), urgent(1, WAITING, 5.0, tenant="a")]
    scheduler = house(*rows, max_num_seqs=1)
    scheduler.shares.serve("a", 10**6)
    assert step(scheduler) == [1]
