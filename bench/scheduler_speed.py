"""Microseconds of `schedule` and `complete` with 256 running and 2,000 waiting rows.

    PYTHONPATH=src:tests python3 bench/scheduler_speed.py

Beside it, in the same run, a heap of 2,000 that takes 256 pushes and gives 256 pops: machines differ.
"""

from __future__ import annotations

import heapq
import random
import statistics
import time

from polychoir.engine.cost import StepCost
from polychoir.engine.plan import Limits
from polychoir.engine.scheduler import Scheduler
from polychoir.engine.sequence import Urgency
from polychoir.types import SequenceOutput, StepResult
from support.engines import urgent

RUNNING, WAITING, STEPS, PLANS = 256, 2_000, 32, 400


def full_house(tenants: int, seed: int) -> tuple[list[float], list[int]]:
    """Seconds and rows of each plan; new rows come for those that end."""
    limits = Limits(RUNNING, 10**6, 4 * (RUNNING + WAITING), 1, 1, 10**5)
    scheduler = Scheduler(limits, StepCost(1e-3, 1.5e-6))
    draw, number, now = random.Random(seed), 0, 0.0
    took, rows = [], []
    for _ in range(PLANS):
        while len(scheduler.waiting) < WAITING:
            urgency = draw.choice((Urgency.WAITING, Urgency.IDLE))  # a full step: nobody listens
            row = urgent(
                number, urgency, now + draw.uniform(0.3, 60), tokens=100, steps=STEPS, arrived_at=now
            )
            row.tenant = str(number % tenants)
            scheduler.add(row)
            number += 1
        started = time.perf_counter()
        plan = scheduler.schedule(now)
        planned_at = time.perf_counter()
        assert plan is not None
        last = [planned for planned in plan.rows if planned.step + 1 == STEPS]
        outputs = tuple(SequenceOutput(planned.seq_id, epoch=planned.epoch) for planned in last)
        completing = time.perf_counter()
        scheduler.complete(StepResult(plan.plan_id, outputs), now)
        took.append(time.perf_counter() - completing + planned_at - started)
        rows.append(len(plan.rows))
        now += 0.02
    return took[STEPS:], rows[STEPS:]


def bare_heap() -> float:
    """Median seconds of as many pushes and pops."""
    draw, took = random.Random(1), []
    heap = [(draw.random(), number) for number in range(WAITING)]
    heapq.heapify(heap)
    for _ in range(200):
        keys = [draw.random() for _ in range(RUNNING)]
        started = time.perf_counter()
        for number, key in enumerate(keys):
            heapq.heappush(heap, (key, number))
        for _ in range(RUNNING):
            heapq.heappop(heap)
        took.append(time.perf_counter() - started)
    return statistics.median(took)


def main() -> None:
    for tenants in (1, 16, 256):
        took, rows = full_house(tenants, seed=1)
        ordered = sorted(took)
        middle, late = ordered[len(ordered) // 2] * 1e6, ordered[int(0.99 * len(ordered))] * 1e6
        heap = bare_heap() * 1e6
        print(
            f"{tenants:4} tenants, {statistics.mean(rows):.0f} rows a plan: "
            f"median {middle:.0f} us, p99 {late:.0f} us; a heap {heap:.0f} us, ratio {middle / heap:.2f}"
        )


if __name__ == "__main__":
    main()
