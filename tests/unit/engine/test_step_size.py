"""The size of a step against hand-made backlogs: 1 ms and 1 us a token."""

from __future__ import annotations

import pytest

from polychoir.engine.backlog import Backlog
from polychoir.engine.cost import StepCost
from polychoir.engine.sequence import Urgency
from polychoir.engine.step_size import (
    DRAIN_S,
    FULL_SHARE,
    HEADROOM,
    IDLE_SHARE,
    SHARE,
    quick_size,
    step_size,
    target_s,
)
from support.engines import urgent

COST = StepCost(host_s=1e-3, per_token_s=1e-6)


def size(*rows, now=0.0):
    backlog = Backlog()
    for one in rows:
        one.weight = one.chunk.work.tokens
        backlog.enter(one, now)
    return step_size(backlog, COST, now, target_s=0.32, steps=32)


def test_a_first_chunk_alone_runs_alone():
    quick = urgent(0, Urgency.FIRST, 0.3, tokens=200, steps=32)
    assert 200 <= size(quick) < 400


def test_later_chunks_join_only_as_fast_as_they_must():
    first = urgent(0, Urgency.FIRST, 0.3, tokens=200, steps=32)
    later = [urgent(i, Urgency.LISTENING, 60.0, tokens=400, steps=32) for i in range(1, 20)]
    assert size(first, *later) < 400


def test_many_first_chunks_grow_the_step_up_to_what_is_quick():
    firsts = [urgent(i, Urgency.FIRST, 0.3, tokens=200, steps=32) for i in range(100)]
    full = (FULL_SHARE * 0.32 / 32 - 1e-3) / 1e-6
    assert quick_size(COST, 0.32, 32, FULL_SHARE) == pytest.approx(full)
    assert size(*firsts) == pytest.approx(full)


def test_later_chunks_beside_a_first_one_fill_less_than_first_ones_alone_may():
    first = urgent(0, Urgency.FIRST, 0.3, tokens=200, steps=32)
    late = [urgent(i, Urgency.LISTENING, 0.5, tokens=400, steps=99) for i in range(1, 99)]
    assert size(first, *late) == pytest.approx((SHARE * 0.32 / 32 - 1e-3) / 1e-6)


def test_without_first_chunks_the_backlog_is_drained_in_time():
    far = [urgent(i, Urgency.WAITING, 1e6, tokens=1_000, steps=1_000) for i in range(3)]
    assert size(*far) == pytest.approx(COST.size_for(HEADROOM * 3e6 / DRAIN_S))


def test_what_cannot_be_kept_up_with_takes_all_there_is():
    assert size(urgent(0, Urgency.WAITING, 0.1, tokens=10_000, steps=1_000)) == float("inf")


def test_idle_rows_fill_the_step_to_their_share():
    assert size(urgent(0, Urgency.IDLE, 1e6)) == pytest.approx(COST.size_for(IDLE_SHARE * 1e6))


def test_the_target_is_never_less_than_the_device_can_do():
    slow = StepCost(host_s=0.1, per_token_s=0.0)
    assert target_s(0.3, COST, 200, 32) == 0.3
    assert target_s(0.3, slow, 200, 32) == pytest.approx(1.5 * 3.2)
