"""Retry-After against the truth: from a refusal until the same request would have been let in."""

from __future__ import annotations

import random
import statistics

import pytest

from polychoir.engine.admission import MIN_RETRY_S, admit
from polychoir.errors import Overloaded
from polychoir.types import Chunk, Terms, Work
from tests.property.test_policy import COST, World

PROBE_S = 0.002


def chunks_of(draw: random.Random) -> list[Chunk]:
    return [
        Chunk(index, "", Work(draw.randint(10, 40), 32), None, estimated_s=2.0)
        for index in range(draw.choice((1, 1, 2, 4)))
    ]


def refusals(load: float, seed: int) -> list[tuple[float, float]]:
    """Seconds said and seconds true, of every refusal; nobody who is refused comes again."""
    world, draw, open_, found = World(max_num_batched_tokens=400), random.Random(seed), [], []
    rate = load * COST.pace(COST.knee) / (32 * 25 * 2)
    at = 0.0
    while at < 40.0:
        at += draw.expovariate(rate)
        while world.clock.now < at:
            world.run(min(at, world.clock.now + PROBE_S))
            for one in list(open_):
                chunks, asked_at, said = one
                try:
                    admit(world.scheduler, chunks, Terms("interactive"), world.clock.now)
                except Overloaded:
                    continue
                found.append((said, world.clock.now - asked_at))
                open_.remove(one)
        chunks, before = chunks_of(draw), len(world.refused)
        world.ask("interactive", "", [(c.work.tokens, c.work.steps) for c in chunks])
        if len(world.refused) > before:
            open_.append((chunks, world.clock.now, world.refused[-1]))
    return found


@pytest.mark.parametrize(("load", "within"), [(1.5, 0.25), (3.0, 0.35)])
def test_half_of_what_is_said_is_right(load: float, within: float) -> None:
    """Waits shorter than the least that is ever said are told as that. Far above capacity smaller requests
    slip in before the one that was refused, so what is said is rather too short."""
    found = [pair for seed in (1, 2) for pair in refusals(load, seed)]
    assert len(found) > 100
    errors = [abs(max(true, MIN_RETRY_S) - said) / max(true, MIN_RETRY_S) for said, true in found]
    assert statistics.median(errors) <= within
