"""The middle of the steps moves the curve, a hiccup does not. Whose time a report tells."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from polychoir.engine.core import EngineCore
from polychoir.engine.cost import StepCost
from polychoir.engine.refinement import Refinement, StepTimes
from polychoir.engine.scheduler import Scheduler
from polychoir.types import PlannedRow, StepPlan, StepSample, Work
from support.engines import Clock, CountingRunner, chunk, limits, row

BASE = StepCost(host_s=1e-3, per_token_s=2e-6, per_square_s=1e-9, floor_s=1e-3, decode_s=0.1, lanes=2)


def step(factor: float, tokens: int = 1_000, squares: int = 100_000) -> StepSample:
    return StepSample(tokens, squares, factor * BASE.seconds(tokens, squares))


def fed(factors: list[float], base: StepCost = BASE) -> tuple[Refinement, list[StepCost]]:
    refinement = Refinement(base)
    found = [refinement.observe(step(factor)) for factor in factors]
    return refinement, [cost for cost in found if cost is not None]


def test_steps_as_expected_change_nothing():
    assert fed([1.0] * 500)[1] == []
    assert fed([1.02, 0.985] * 250)[1] == []


def test_a_device_twice_as_slow_is_believed_and_the_shape_kept():
    refinement, curves = fed([2.0] * 200)
    assert refinement.factor == pytest.approx(2.0, rel=0.01)
    last = curves[-1]
    assert last.per_token_s / last.host_s == pytest.approx(BASE.per_token_s / BASE.host_s)
    assert last.per_square_s / last.host_s == pytest.approx(BASE.per_square_s / BASE.host_s)
    assert (last.decode_s, last.lanes) == (BASE.decode_s, BASE.lanes)
    assert last.seconds(1_000) == pytest.approx(2 * BASE.seconds(1_000), rel=0.04)


def test_a_hiccup_moves_it_by_two_percent_at_most():
    assert 1.0 < fed([1.0] * 50 + [100.0])[0].factor < 1.021
    assert 0.979 < fed([0.01])[0].factor < 1.0


def test_hiccups_in_a_twentieth_of_the_steps_cost_four_percent_at_most():
    draw = random.Random(3)
    factors = [100.0 if draw.random() < 0.05 else draw.uniform(0.95, 1.05) for _ in range(2_000)]
    assert fed(factors)[0].factor == pytest.approx(1.0, abs=0.04)


def test_a_curve_is_given_out_only_when_it_differs_by_three_percent():
    _, curves = fed([1.5] * 300)
    heights = [1.0, *(curve.host_s / BASE.host_s for curve in curves)]
    ratios = [after / before for before, after in pairwise(heights)]
    assert ratios and all(ratio > 1.03 for ratio in ratios)
    assert len(curves) < 15


def test_the_factor_is_bounded():
    assert fed([1e6] * 1_000)[0].factor == pytest.approx(10.0)
    assert fed([1e-6] * 1_000)[0].factor == pytest.approx(0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_step_of_no_time_says_nothing(seconds):
    assert Refinement(BASE).observe(StepSample(10, 0, seconds)) is None


# -- whose time it was ---------------------------------------------------------------------------


def plan(number: int, tokens: int = 10, squares: int = 7) -> StepPlan:
    one = replace(chunk(tokens), work=Work(tokens, 3, squares=squares))
    return StepPlan(number, (PlannedRow(number, 0, one),), tokens)


def reported(times: StepTimes, number: int, now: float, *, failed: bool = False) -> float | None:
    sample = times.reported(number, failed=failed, now=now)
    return None if sample is None else sample.seconds


def test_a_plan_alone_takes_from_its_submit_to_its_report():
    times = StepTimes()
    times.submitted(plan(0, tokens=10, squares=7), 1.0)
    assert times.reported(0, failed=False, now=3.0) == StepSample(10, 7, 2.0)


def test_a_plan_queued_behind_another_begins_when_that_ends():
    times = StepTimes()
    times.submitted(plan(0), 0.0)
    times.submitted(plan(1), 0.1)
    assert reported(times, 0, 2.0) == 2.0
    times.submitted(plan(2), 2.0)
    assert reported(times, 1, 3.0) == 1.0
    assert reported(times, 2, 5.0) == 2.0
    times.submitted(plan(3), 100.0)  # after a pause
    assert reported(times, 3, 101.0) == 1.0


def test_plans_on_lanes_of_their_own_each_take_their_own_time():
    times = StepTimes(lanes=2)
    times.submitted(plan(0), 0.0)
    times.submitted(plan(1), 1.0)
    assert reported(times, 0, 2.0) == 2.0
    assert reported(times, 1, 4.0) == 3.0


def test_with_a_lag_a_report_tells_the_end_of_the_step_before():
    """Steps of 2 s, submitted when the one before is reported; 0.1 s for the host to launch the first."""
    times = StepTimes(lag=1)
    times.submitted(plan(0, tokens=5), 0.0)
    assert reported(times, 0, 0.1) is None
    times.submitted(plan(1, tokens=6), 0.1)
    assert times.reported(1, failed=False, now=2.0) == StepSample(5, 7, 2.0)
    times.submitted(plan(2), 2.0)
    assert times.reported(2, failed=False, now=4.0) == StepSample(6, 7, 2.0)
    times.idle()  # the end of plan 2 will never be seen
    times.submitted(plan(3), 50.0)
    assert reported(times, 3, 50.1) is None
    times.submitted(plan(4), 50.1)
    assert reported(times, 4, 52.0) == 2.0


@pytest.mark.parametrize("lag", [0, 1])
def test_a_plan_that_failed_or_is_not_known_says_nothing(lag):
    times = StepTimes(lag=lag)
    assert times.reported(None, failed=False, now=1.0) is None
    assert times.reported(7, failed=False, now=1.0) is None
    times.submitted(plan(0), 0.0)
    assert reported(times, 0, 1.0, failed=True) is None
    times.submitted(plan(1), 1.0)
    assert reported(times, 1, 2.0) == (None if lag else 1.0)


# -- through the core ----------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1, 2])
def test_the_core_learns_that_its_device_is_slower(ahead):
    """Whether steps are queued ahead or not, each is seen to take what it takes."""
    cost = StepCost(host_s=1.0, per_token_s=0.1)
    clock, runner = Clock(), CountingRunner()
    scheduler = Scheduler(limits(max_concurrent_plans=ahead, steps_ahead=ahead), cost)
    core = EngineCore(scheduler, runner, clock, lambda ended: None)
    core.add(row(0, tokens=10, steps=300))
    while scheduler.running or scheduler.waiting:
        core.step()
        clock.now += 1.5 * cost.seconds(runner.pending[0].tokens)
        runner.finish()
        core.step()
    assert scheduler.cost.seconds(10) == pytest.approx(1.5 * cost.seconds(10), rel=0.04)


def test_a_pause_is_not_taken_for_a_slow_step():
    cost = StepCost(host_s=1.0, per_token_s=0.1)
    clock, runner = Clock(), CountingRunner()
    scheduler = Scheduler(limits(), cost)
    core = EngineCore(scheduler, runner, clock, lambda ended: None)
    for number in range(100):
        core.add(row(number, tokens=10, steps=1))
        core.step()
        clock.now += cost.seconds(10)
        runner.finish()
        core.step()
        clock.now += 1_000.0
    assert scheduler.cost == cost
