"""What the policy promises, whatever arrives: exact work, no starvation, fair shares, one schedule."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polychoir.engine.admission import admit
from polychoir.engine.batch import AGE_S
from polychoir.engine.core import EngineCore
from polychoir.engine.cost import StepCost
from polychoir.engine.scheduler import Scheduler
from polychoir.engine.sequence import Sequence, Urgency
from polychoir.errors import Overloaded
from polychoir.types import Chunk, Terms, Work
from support.engines import Clock, CountingRunner, limits, urgent

COST = StepCost(host_s=1e-3, per_token_s=1e-4, decode_s=2e-3)
TIERS = ("interactive", "standard", "batch")

ARRIVAL = st.tuples(
    st.integers(0, 400),  # milliseconds after the one before
    st.sampled_from(TIERS),
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=4),
)


class World:
    """Arrivals through admission on a virtual clock; a step takes what the curve says."""

    def __init__(self, cost=COST, poison=(), **changes):
        self.clock = Clock()
        self.cost = cost
        self.poison = frozenset(poison)
        self.runner = CountingRunner(fail=self.fail)
        self.ended, self.refused, self.rows = [], [], []
        values = {"max_num_seqs": 16, "max_resident_seqs": 64, **changes}
        self.scheduler = Scheduler(limits(**values), cost)
        self.core = EngineCore(self.scheduler, self.runner, self.clock, self.ended.append)
        self.idle_s = 0.0

    def fail(self, plan):
        if any(planned.seq_id in self.poison for planned in plan.rows):
            raise RuntimeError("poison")
        return ()

    def ask(self, tier, tenant, works, timeout_s=None):
        chunks = [Chunk(i, "", Work(*work), None, estimated_s=1.0) for i, work in enumerate(works)]
        try:
            found = admit(self.scheduler, chunks, Terms(tier, tenant, timeout_s), self.clock.now)
        except Overloaded as refusal:
            self.refused.append(refusal.retry_after_s)
            return
        now, end = self.clock.now, float("inf") if timeout_s is None else self.clock.now + timeout_s
        for chunk, (urgency, deadline) in zip(chunks, found, strict=True):
            row = Sequence(
                len(self.rows), len(self.rows), chunk, tier, now, tenant, urgency, deadline, expires_at=end
            )
            self.rows.append(row)
            self.core.add(row)

    def run(self, until=float("inf")):
        """Steps until then, or until nothing is left."""
        while self.clock.now < until:
            self.core.step()
            if not self.runner.pending:
                assert not self.scheduler.waiting and not self.scheduler.running, "idle while a row could run"
                self.clock.now = until if until < float("inf") else self.clock.now
                return
            self.clock.now += self.cost.seconds(self.runner.pending[0].tokens)
            self.runner.finish()
            self.core.step()

    def schedule(self):
        return [tuple((r.seq_id, r.step) for r in plan.rows) for plan in self.runner.plans]


def world_of(arrivals, **changes):
    world = World(**changes)
    for gap, tier, tenant, works in arrivals:
        world.run(world.clock.now + gap / 1e3)
        world.ask(tier, tenant, works)
    world.run()
    return world


@settings(max_examples=150, deadline=None)
@given(st.lists(ARRIVAL, max_size=25))
def test_every_row_gets_exactly_its_steps_however_it_pauses(arrivals):
    world = world_of(arrivals)
    assert sorted(end.sequence.seq_id for end in world.ended) == list(range(len(world.rows)))
    steps = defaultdict(list)
    for plan in world.runner.plans:
        assert plan.tokens <= 100 or len(plan.rows) == 1
        assert len(plan.rows) <= 16
        for planned in plan.rows:
            steps[planned.seq_id].append(planned.step)
    for row in world.rows:
        assert steps[row.seq_id] == list(range(row.chunk.work.steps))
    backlog = world.scheduler.backlog
    assert backlog.tokens == 0 and not any(backlog.weights.values())
    assert backlog.listening.total == backlog.waiting.total == 0
    assert len(world.scheduler.batch.ready) == len(world.scheduler.batch.rows) == 0
    assert not any(world.scheduler.waiting_by_tier.values())


@settings(max_examples=50, deadline=None)
@given(st.lists(ARRIVAL, max_size=20))
def test_the_same_arrivals_give_the_same_schedule(arrivals):
    assert world_of(arrivals).schedule() == world_of(arrivals).schedule()


@settings(max_examples=50, deadline=None)
@given(st.lists(ARRIVAL, max_size=20))
def test_a_tenant_that_asks_for_nothing_changes_nothing(arrivals):
    def served(name):
        world = World()
        world.scheduler.shares.enter(name)
        world.scheduler.shares.leave(name)
        for gap, tier, tenant, works in arrivals:
            world.run(world.clock.now + gap / 1e3)
            world.ask(tier, tenant, works)
        world.run()
        return world.schedule()

    assert served("idle") == world_of(arrivals).schedule()


@settings(max_examples=50, deadline=None)
@given(st.lists(ARRIVAL, min_size=1, max_size=20), st.integers(0, 8))
def test_a_poison_row_fails_alone(arrivals, poison):
    world = world_of(arrivals, poison={poison})
    failed = [end.sequence.seq_id for end in world.ended if end.output.error is not None]
    assert failed == ([poison] if poison < len(world.rows) else [])
    assert len(world.ended) == len(world.rows)


@settings(max_examples=50, deadline=None)
@given(st.lists(ARRIVAL, min_size=1, max_size=20), st.floats(0.01, 2.0))
def test_past_its_time_no_row_costs_a_step(arrivals, timeout_s):
    world = World()
    for gap, tier, tenant, works in arrivals:
        world.run(world.clock.now + gap / 1e3)
        world.ask(tier, tenant, works, timeout_s)
    world.run()
    assert len(world.ended) == len(world.rows)
    longest = world.cost.seconds(100)
    for end in world.ended:
        row = end.sequence
        if end.output.error is None:
            assert end.at <= row.expires_at + 2 * longest
        elif row.last_step_at is not None:
            assert row.last_step_at <= row.expires_at + longest


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([0.25, 0.5, 2.0, 4.0]), st.integers(5, 40))
def test_a_device_twice_as_slow_serves_half(factor, gap_ms):
    """Time and deadlines scaled alike, the schedule is the same."""

    def run(scale):
        cost = StepCost(1e-3 * scale, 1e-4 * scale)
        world = World(cost, ttfa_target_s=0.3 * scale)
        for number in range(40):
            world.run(number * gap_ms / 1e3 * scale)
            world.ask("standard", "", [(20, 8)])
        world.run()
        return world

    one, other = run(1.0), run(factor)
    assert [r for plan in one.schedule() for r in plan] and len(one.ended) == len(other.ended) == 40
    assert other.clock.now / one.clock.now == pytest.approx(factor, rel=0.05)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(list(Urgency)[1:]), st.integers(1, 30), st.integers(1, 5), st.integers(1, 3))
def test_no_row_starves(urgency, steps, late, rows):
    """First chunks that fill every step never end; late rows are through all the same, one by one: within the
    age, and for each row before them and themselves what they take."""
    scheduler = Scheduler(limits(max_num_seqs=2, max_resident_seqs=8), COST)
    clock, ended = Clock(), {}
    core = EngineCore(
        scheduler,
        runner := CountingRunner(),
        clock,
        lambda end: ended.setdefault(end.sequence.seq_id, end.at),
    )
    for number in range(rows):
        scheduler.add(urgent(number, urgency, -float(late), tokens=50, steps=steps))
    number, step_s = rows, COST.seconds(100)
    while clock.now < AGE_S + 5.0 and len([one for one in ended if one < rows]) < rows:
        while scheduler.backlog.weights[Urgency.FIRST] < 400:
            scheduler.add(
                urgent(number, Urgency.FIRST, clock.now + 9.0, tokens=50, steps=2, arrived_at=clock.now)
            )
            number += 1
        core.step()
        clock.now += step_s
        runner.finish()
        core.step()
    for place in range(rows):
        assert ended[place] <= AGE_S + (place + 1) * (steps + 8) * step_s


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(10, 50), st.integers(1, 9)), min_size=2, max_size=4),
    st.sampled_from([Urgency.WAITING, Urgency.IDLE]),
)
def test_tenants_with_work_are_served_alike(shapes, urgency):
    """Each tenant always has rows waiting. The gap stays within twice what a batch of the largest rows comes
    to: rows that run are not interrupted for fairness. The bound is that of virtual token counters."""
    scheduler = Scheduler(limits(max_num_seqs=4, max_resident_seqs=64), COST)
    clock = Clock()
    core = EngineCore(scheduler, runner := CountingRunner(), clock, lambda end: None)
    waiting = Counter()
    number, worst = 0, 0
    for _ in range(400):
        for tenant, (tokens, steps) in enumerate(shapes):
            waiting[tenant] = sum(row.tenant == str(tenant) for row in scheduler.waiting.values())
            for _ in range(5 - waiting[tenant]):
                scheduler.add(urgent(number, urgency, 0.0, tokens=tokens, steps=steps, tenant=str(tenant)))
                number += 1
        core.step()
        clock.now += 0.01
        runner.finish()
        core.step()
        worst = max(worst, scheduler.shares.gap)
    assert worst <= 2 * 4 * max(tokens * steps for tokens, steps in shapes)
