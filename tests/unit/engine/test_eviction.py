"""Who makes way in a full queue."""

from __future__ import annotations

import pytest

from polychoir.engine.eviction import worst_queued
from polychoir.engine.scheduler import Scheduler
from polychoir.engine.sequence import Sequence
from polychoir.types import StepResult, Terms
from support.engines import chunk, limits


def queue(*requests, limit=4, **changes):
    """Requests as (tenant, tokens of each chunk), all waiting."""
    scheduler = Scheduler(limits(queue_limit=limit, max_num_seqs=1, **changes))
    number = 0
    for request, (tenant, *tokens) in enumerate(requests):
        for index, one in enumerate(tokens):
            scheduler.add(Sequence(number, request, chunk(one, index=index), "standard", 0.0, tenant))
            number += 1
    return scheduler


def evicted(scheduler, tenant, *tokens, tier="standard"):
    chunks = [chunk(one, index=index) for index, one in enumerate(tokens)]
    return sorted({row.request for row in worst_queued(scheduler, chunks, Terms(tier, tenant))})


def test_who_has_most_waiting_makes_way_for_who_has_little():
    assert evicted(queue(("a", 10), ("a", 20), ("a", 15), ("b", 90)), "c", 10) == [1]


def test_equals_do_not_make_way_for_each_other():
    assert evicted(queue(("a", 10), ("b", 10), ("c", 10), ("d", 10)), "e", 10) == []
    assert evicted(queue(("a", 10), ("a", 10), ("a", 10), ("a", 10)), "a", 10) == []


def test_a_giant_makes_way_for_a_small_one():
    scheduler = queue(("a", 10), ("a", 100, 100), ("a", 30))
    assert evicted(scheduler, "a", 10) == [1]
    assert evicted(scheduler, "a", 60) == []


def test_what_has_begun_stays():
    scheduler = queue(("a", 100, 100), ("a", 10), ("a", 10))
    plan = scheduler.schedule(0.0)
    assert plan is not None and plan.rows[0].seq_id == 0
    assert evicted(scheduler, "a", 5) == []
    scheduler.complete(StepResult(plan.plan_id), 0.0)
    scheduler.abort(0)  # the first chunk has been spoken; the second waits
    assert evicted(scheduler, "a", 5) == []


def test_only_one_that_leaves_room_enough():
    assert evicted(queue(("a", 10), ("a", 10), ("a", 10), ("a", 10)), "b", 1, 1) == []
    assert evicted(queue(("a", 10, 10), ("a", 10), ("a", 10)), "b", 1, 1) == [0]


@pytest.mark.parametrize("tier", ["interactive", "batch"])
def test_other_tiers_have_queues_of_their_own(tier):
    assert evicted(queue(("a", 10), ("a", 10), ("a", 10), ("a", 10)), "b", 1, tier=tier) == []
