"""A seeded trace through the engine on a virtual clock: the schedule, row by row, as text.

A change of policy changes the golden file on purpose; a change of anything else must not.
"""

from __future__ import annotations

import random
from pathlib import Path

from polychoir.engine.core import EngineCore
from polychoir.engine.scheduler import Scheduler
from polychoir.engine.sequence import Urgency
from support.engines import Clock, CountingRunner, limits, urgent

GOLDEN = Path(__file__).parent / "golden.txt"
STEP_S = 0.010
TOKEN_S = 0.0001


class VirtualRunner(CountingRunner):
    """Each plan takes STEP_S + TOKEN_S a token of the clock's time, one after the other."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.free_at, self.due = clock, 0.0, []

    def submit(self, plan):
        super().submit(plan)
        self.free_at = max(self.free_at, self.clock.now) + STEP_S + TOKEN_S * plan.tokens
        self.due.append(self.free_at)

    def poll(self):
        while self.due and self.due[0] <= self.clock.now + 1e-9:
            self.due.pop(0)
            self.finish()
        return super().poll()


def simulate(seed, rows, rate, abort_share):
    """Poisson arrivals of mixed rows, a share of which leave again; returns the core, runner and ends."""
    rng = random.Random(seed)
    arrivals, now = [], 0.0
    for i in range(rows):
        now += rng.expovariate(rate)
        urgency = rng.choice(list(Urgency))
        tokens, steps = rng.randint(5, 120), rng.choice([4, 8, 16])
        wanted = now + {Urgency.FIRST: 0.3, Urgency.IDLE: 1e4}.get(urgency, rng.uniform(0.3, 5.0))
        arrivals.append((now, urgent(i, urgency, wanted, tokens=tokens, steps=steps, arrived_at=now)))
    leaving = sorted(
        (at + rng.random() * 0.2, one.seq_id) for at, one in arrivals if rng.random() < abort_share
    )
    clock, ended = Clock(), []
    runner = VirtualRunner(clock)
    core = EngineCore(
        Scheduler(limits(max_concurrent_plans=2, steps_ahead=2, max_num_batched_tokens=200)),
        runner,
        clock,
        ended.append,
    )
    gone = set()
    while arrivals or runner.due or core.scheduler.waiting:
        events = [at for at, _ in arrivals[:1]] + [at for at, _ in leaving[:1]] + runner.due[:1]
        clock.now = max(clock.now, min(events))
        while arrivals and arrivals[0][0] <= clock.now:
            core.scheduler.add(arrivals.pop(0)[1])
        while leaving and leaving[0][0] <= clock.now:
            seq_id = leaving.pop(0)[1]
            if seq_id not in {end.sequence.seq_id for end in ended}:
                gone.add(seq_id)
                core.abort(seq_id)
        while core.step():
            pass
    return core, runner, ended, gone


def test_the_schedule_of_a_seeded_trace_is_the_golden_one():
    _, runner, _, _ = simulate(seed=7, rows=24, rate=40.0, abort_share=0.2)
    lines = [" ".join(f"{r.seq_id}.{r.step}" for r in plan.rows) for plan in runner.plans]
    assert "\n".join(lines) + "\n" == GOLDEN.read_text()


def test_under_twice_the_load_nothing_is_lost_and_bounds_hold():
    core, _, ended, gone = simulate(seed=11, rows=400, rate=60.0, abort_share=0.1)
    assert {end.sequence.seq_id for end in ended} | gone == set(range(400))
    assert len(ended) + len(gone) == 400
    stats = core.stats
    assert (stats.waiting, stats.running, stats.decoding, stats.plans_in_flight) == (0, 0, 0, 0)
    assert stats.sequences_aborted == len(gone) > 10
    assert stats.avg_batch_size > 2


def test_the_device_is_never_idle_while_rows_wait():
    """One step ahead: every plan but those after an empty house starts the moment the last one ends."""
    core, runner, ended, _ = simulate(seed=3, rows=200, rate=1e6, abort_share=0.0)
    busy = sum(STEP_S + TOKEN_S * plan.tokens for plan in runner.plans)
    assert runner.free_at - busy < 1e-3
    assert len(ended) == 200
    assert core.stats.busy_s > 0.99 * busy
