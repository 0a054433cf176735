"""EngineCore: the heart. Schedule, submit, poll, complete.

Knows no thread, no event loop, no model: the clock and the runner are handed in, so a simulator can drive
it with a virtual clock and a runner that only counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from polychoir.engine.cost import backlog_s
from polychoir.engine.refinement import Refinement, StepTimes
from polychoir.engine.scheduler import Scheduler
from polychoir.engine.sequence import Ended, Sequence
from polychoir.errors import DeviceLost
from polychoir.models.base import Runner
from polychoir.types import GraphUse, StepPlan, StepResult, Tier


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for metrics: gauges of this moment, then counters since the start.

    steps_total counts row-steps (a step with 8 rows adds 8). rows_dispatched / batches_dispatched is the
    average batch; where a plan holds one item only, a batch is what runs together, so each plan adds the
    rows in flight. Tokens are packed tokens; busy_s is time with at least one plan in flight. backlog_s is
    how long the steps not planned yet will take at the pace so far. graph_steps: plans by how they met a
    captured graph, for runners that have any. clips_prepared: reference clips that rows waited for; of them
    clips_encoded were not in the cache.
    """

    waiting: int = 0
    waiting_by_tier: Mapping[Tier, int] = field(default_factory=dict)
    backlog_s: float = 0.0
    running: int = 0
    decoding: int = 0
    plans_in_flight: int = 0
    step_tokens: int = 0
    steps_total: int = 0
    batches_dispatched: int = 0
    rows_dispatched: int = 0
    tokens_total: int = 0
    padded_tokens_total: int = 0
    sequences_finished: int = 0
    sequences_failed: int = 0
    sequences_aborted: int = 0
    sequences_refused: int = 0
    busy_s: float = 0.0
    graph_steps: Mapping[GraphUse, int] = field(default_factory=dict)
    clips_prepared: int = 0
    clips_encoded: int = 0

    @property
    def avg_batch_size(self) -> float:
        return self.rows_dispatched / self.batches_dispatched if self.batches_dispatched else 0.0


class EngineCore:
    """One scheduler and one runner, stepped by whoever owns the thread.

    `deliver` is called with each sequence that ended, before `step` returns; `stats` has counted it by then.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float],
        deliver: Callable[[Ended], None],
        *,
        lag: int = 0,
    ) -> None:
        """lag: `Device.lag` of the runner."""
        self.scheduler = scheduler
        self.runner = runner
        self.counts = Counts()
        self.stats = EngineStats()
        self._clock = clock
        self._deliver = deliver
        self._times = StepTimes(scheduler.cost.lanes, lag)
        self._refinement = Refinement(scheduler.cost)

    def step(self) -> bool:
        """Start what can start and settle what has come back. False if nothing came back."""
        now = self._clock()
        ended = self.scheduler.expire(now)
        while (plan := self.scheduler.schedule(now)) is not None:
            self.counts.dispatched(plan, self._batch_size(plan), now)
            self._times.submitted(plan, now)
            self.runner.submit(plan)
        if not self.scheduler.in_flight:
            self._times.idle()
        results = self.runner.poll()
        now = self._clock()
        for result in results:
            if isinstance(result.error, DeviceLost):
                raise result.error  # no later plan can succeed, and no row is to blame
            ended += self.scheduler.complete(result, now)
            self._learn(result, now)
            self.counts.settled(result, idle=not self.scheduler.in_flight, now=now)
        self.stats = self.counts.snapshot(self.scheduler, ended)
        for one in ended:
            if one.output.error is not None:
                self.runner.drop(one.sequence.seq_id)  # whatever it still holds of a row that was given up
            self._deliver(one)
        return bool(results or ended)

    def add(self, row: Sequence) -> None:
        """A row that was let in. The runner may have something to make for it before it can run."""
        self.scheduler.add(row, prepared=self.runner.prepare(row.seq_id, row.chunk))

    def evict(self, rows: Iterable[Sequence], error: Exception) -> None:
        """These make way in a full queue, and are told why."""
        now = self._clock()
        for row in rows:
            self.counts.sequences_refused += 1
            self.runner.drop(row.seq_id)
            self._deliver(self.scheduler.evict(row, error, now))

    def abort(self, seq_id: int) -> None:
        """The client of this row has gone: it costs nothing from the next plan on."""
        self.counts.sequences_aborted += 1
        if self.scheduler.abort(seq_id):
            self.runner.drop(seq_id)

    def _learn(self, result: StepResult, now: float) -> None:
        """Keep the cost curve true."""
        step = self._times.reported(result.plan_id, failed=result.error is not None, now=now)
        if step is not None and (cost := self._refinement.observe(step)) is not None:
            self.scheduler.cost = cost

    def _batch_size(self, plan: StepPlan) -> int:
        if self.scheduler.limits.max_num_seqs > 1:
            return len(plan.rows)
        return sum(len(other.rows) for other in self.scheduler.in_flight.values())


class Counts:
    """The engine's counters; changed by its thread alone, read through snapshots."""

    def __init__(self) -> None:
        self.steps_total = self.batches_dispatched = self.rows_dispatched = 0
        self.tokens_total = self.padded_tokens_total = self.step_tokens = 0
        self.sequences_finished = self.sequences_failed = 0
        self.sequences_aborted = self.sequences_refused = 0
        self.busy_s = 0.0
        self.graph_steps: Counter[GraphUse] = Counter()
        self.clips_prepared = self.clips_encoded = 0
        self._busy_since: float | None = None

    def dispatched(self, plan: StepPlan, batch_size: int, now: float) -> None:
        self.step_tokens = plan.tokens
        self.steps_total += len(plan.rows)
        self.batches_dispatched += 1
        self.rows_dispatched += batch_size
        self.tokens_total += plan.tokens
        self._busy_since = now if self._busy_since is None else self._busy_since

    def settled(self, result: StepResult, *, idle: bool, now: float) -> None:
        self.padded_tokens_total += result.padded_tokens
        self.clips_prepared += len(result.prepared)
        self.clips_encoded += result.encoded
        if result.graph is not None:
            self.graph_steps[result.graph] += 1
        if self._busy_since is not None:
            self.busy_s += now - self._busy_since
            self._busy_since = None if idle else now

    @property
    def tokens_per_s(self) -> float:
        """The pace so far; 0 before the first result."""
        return self.tokens_total / self.busy_s if self.busy_s else 0.0

    def snapshot(self, scheduler: Scheduler, ended: list[Ended]) -> EngineStats:
        """Count what just ended, and say how things stand."""
        failed = sum(one.output.error is not None for one in ended)
        self.sequences_failed += failed
        self.sequences_finished += len(ended) - failed
        return EngineStats(
            waiting=len(scheduler.waiting) + len(scheduler.preparing),
            waiting_by_tier=dict(scheduler.waiting_by_tier),
            backlog_s=backlog_s(scheduler.backlog_tokens, self.tokens_per_s),
            running=len(scheduler.running),
            decoding=len(scheduler.decoding),
            plans_in_flight=len(scheduler.in_flight),
            step_tokens=self.step_tokens,
            steps_total=self.steps_total,
            batches_dispatched=self.batches_dispatched,
            rows_dispatched=self.rows_dispatched,
            tokens_total=self.tokens_total,
            padded_tokens_total=self.padded_tokens_total,
            sequences_finished=self.sequences_finished,
            sequences_failed=self.sequences_failed,
            sequences_aborted=self.sequences_aborted,
            sequences_refused=self.sequences_refused,
            busy_s=self.busy_s,
            graph_steps=dict(self.graph_steps),
            clips_prepared=self.clips_prepared,
            clips_encoded=self.clips_encoded,
        )
