"""Whatever arrives, leaves or fails: every row ends exactly once, within every bound."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from polychoir.engine.core import EngineCore
from polychoir.engine.scheduler import Scheduler
from polychoir.types import SequenceOutput
from support.engines import Clock, CountingRunner, limits, row

ROW = st.tuples(st.integers(1, 150), st.one_of(st.none(), st.integers(1, 6)), st.sampled_from([None, 8, 16]))
ACTION = st.one_of(
    st.tuples(st.just("add"), ROW),
    st.tuples(st.just("abort"), st.integers(0, 30)),
    st.tuples(st.just("step"), st.integers(1, 3)),
)


class World:
    """The engine, and a diary of what happened to each row."""

    def __init__(self, ahead, poison, faulty):
        self.limits = limits(max_concurrent_plans=ahead, steps_ahead=ahead)
        self.runner = CountingRunner(fail=self.fail)
        self.ended = []
        self.poison, self.faulty = poison, faulty
        self.aborted = set()
        self.clock = Clock()
        self.scheduler = Scheduler(self.limits)
        self.core = EngineCore(self.scheduler, self.runner, self.clock, self.ended.append)
        self.rows = 0

    def fail(self, plan):
        if any(planned.seq_id in self.poison for planned in plan.rows):
            raise RuntimeError("poison")
        return [
            SequenceOutput(planned.seq_id, error=ValueError("its own"), epoch=planned.epoch)
            for planned in plan.rows
            if planned.seq_id in self.faulty
        ]

    def add(self, shape):
        tokens, steps, bucket = shape
        if steps is None:
            self.runner.ends[self.rows] = tokens % 5
        self.scheduler.add(row(self.rows, tokens, steps, bucket=bucket))
        self.rows += 1

    def abort(self, seq_id):
        if seq_id < self.rows and seq_id not in {e.sequence.seq_id for e in self.ended} | self.aborted:
            self.aborted.add(seq_id)
            self.core.abort(seq_id)

    def step(self, finished):
        self.clock.now += 1
        self.core.step()
        self.check_bounds()
        for _ in range(min(finished, len(self.runner.pending))):
            self.runner.finish()
        self.core.step()

    def check_bounds(self):
        scheduler = self.scheduler
        assert len(scheduler.running) + len(scheduler.decoding) <= self.limits.max_resident_seqs
        assert len(scheduler.in_flight) <= self.limits.max_concurrent_plans
        for one in scheduler.running.values():
            assert 0 <= one.in_flight <= self.limits.steps_ahead


@settings(max_examples=300, deadline=None)
@given(
    st.lists(ACTION, max_size=60),
    st.integers(1, 2),
    st.sets(st.integers(0, 10), max_size=2),
    st.sets(st.integers(0, 10), max_size=2),
)
def test_every_row_ends_exactly_once_within_every_bound(actions, ahead, poison, faulty):
    world = World(ahead, poison, faulty)
    for name, value in actions:
        getattr(world, name)(value)
    for _ in range(2_000):
        if not (world.scheduler.waiting or world.scheduler.running or world.scheduler.in_flight):
            break
        world.step(1)

    ends = Counter(e.sequence.seq_id for e in world.ended)
    assert set(ends) | world.aborted == set(range(world.rows)), "nothing is lost"
    assert not set(ends) & world.aborted and set(ends.values()) <= {1}, "nothing ends twice"
    for end in world.ended:
        bad = end.sequence.seq_id in world.poison | world.faulty
        assert (end.output.error is not None) == bad, "only the rows at fault fail"
        assert bad or end.output.samples[0] == end.sequence.seq_id
    assert world.scheduler.backlog_tokens == 0
    check_plans(world)


def check_plans(world):
    steps = defaultdict(list)
    for plan in world.runner.plans:
        assert plan.tokens == sum(planned.chunk.work.tokens for planned in plan.rows)
        assert plan.tokens <= world.limits.max_num_batched_tokens or len(plan.rows) == 1
        assert 1 <= len(plan.rows) <= world.limits.max_num_seqs
        assert len({planned.chunk.work.bucket for planned in plan.rows}) == 1
        for planned in plan.rows:
            steps[planned.seq_id, planned.epoch].append(planned.step)
    for run in steps.values():
        assert run == list(range(len(run))), "steps of one run are 0, 1, 2, ..."


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=40), st.integers(1, 8))
def test_equal_rows_start_in_the_order_of_arrival(delays, seqs):
    world = World(1, set(), set())
    world.scheduler.limits = world.limits = limits(max_num_seqs=seqs)
    for delay in delays:
        world.add((10, 3, None))
        if delay > 30:
            world.step(1)
    for _ in range(500):
        world.step(1)
    first = [planned.seq_id for plan in world.runner.plans for planned in plan.rows if planned.step == 0]
    assert first == sorted(first) == list(range(len(delays)))
