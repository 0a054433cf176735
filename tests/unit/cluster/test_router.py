"""Least predicted backlog; sums of snapshots that never go back; pauses between starts."""

from __future__ import annotations

from collections import Counter

from polychoir.cluster.router import Load, choose
from polychoir.cluster.supervisor import Patience
from polychoir.cluster.totals import past, total
from polychoir.engine.core import EngineStats


def pace(tokens_per_s: int) -> EngineStats:
    return EngineStats(tokens_total=tokens_per_s, busy_s=1.0)


def test_the_worker_that_is_through_first_gets_it() -> None:
    assert choose([Load(100, 1, pace(10)), Load(300, 1, pace(100))], 10) == 1
    # Both idle: the larger the work, the more the pace counts.
    assert choose([Load(0, 0, pace(10)), Load(50, 1, pace(100))], 1) == 0
    assert choose([Load(0, 0, pace(10)), Load(50, 1, pace(100))], 10) == 1


def test_a_worker_without_a_pace_is_taken_to_be_like_the_fastest() -> None:
    assert choose([Load(100, 1, pace(10)), Load(200, 1, EngineStats()), Load(900, 1, pace(100))], 0) == 1


def test_alike_workers_share_alike() -> None:
    tokens = [0, 0, 0, 0]
    for n in range(400):
        tokens[choose([Load(each, 0, EngineStats()) for each in tokens], n % 7 + 1)] += n % 7 + 1
    assert max(tokens) - min(tokens) <= 7


def test_a_tie_goes_to_fewer_rows_then_to_the_first() -> None:
    assert choose([Load(5, 2, pace(1)), Load(5, 1, pace(1)), Load(5, 1, pace(1))], 3) == 1


def test_totals_add_up_and_the_past_keeps_its_counters() -> None:
    before = EngineStats(waiting=3, running=1, steps_total=5, busy_s=1.5, graph_steps={"hit": 2, "miss": 1})
    after = EngineStats(waiting=1, waiting_by_tier={"batch": 1}, steps_total=2, graph_steps={"hit": 1})
    both = total([past(before), after])
    assert (both.waiting, both.running, both.steps_total, both.busy_s) == (1, 0, 7, 1.5)
    assert both.waiting_by_tier == {"batch": 1}
    assert Counter(both.graph_steps) == Counter(hit=3, miss=1)
    assert total([]) == EngineStats()


def test_pauses_double_up_to_the_longest() -> None:
    pauses = [Patience().pause_s(deaths) for deaths in (1, 2, 3, 6, 7, 8, 5_000)]
    assert pauses == [0.5, 1.0, 2.0, 16.0, 30.0, 30.0, 30.0]
