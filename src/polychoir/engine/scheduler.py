"""Scheduler: where every sequence is, from its arrival to its output.

Pure bookkeeping over plain data: no clock, no threads, no tensors. `schedule` and `complete` are all that
the heart of the engine calls. Who is in a step is `Batch`'s to say (batch.py).
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush

from polychoir.engine.backlog import Backlog
from polychoir.engine.batch import Batch
from polychoir.engine.cost import ASSUMED, StepCost
from polychoir.engine.plan import Limits, Room
from polychoir.engine.sequence import Ended, Sequence
from polychoir.engine.shares import Shares
from polychoir.errors import CannotBatch, DeadlineExceeded, InternalError
from polychoir.types import PlannedRow, SequenceOutput, StepPlan, StepResult, Tier


class Scheduler:
    """Holds every sequence from its arrival until its output.

    `preparing` cannot run yet, `waiting` have had no step, `running` hold a slot, `decoding` have had their
    last step and wait for their audio. All keep the order of entry, so plans never depend on hashes.
    `resident_tokens`: of the rows that hold a slot. `hold_until`: nothing is planned until so many rows wait,
    once (for tests that need a certain batch).
    """

    def __init__(self, limits: Limits, cost: StepCost = ASSUMED) -> None:
        self.limits = limits
        self.preparing: dict[int, Sequence] = {}
        self.waiting: dict[int, Sequence] = {}
        self.running: dict[int, Sequence] = {}
        self.decoding: dict[int, Sequence] = {}
        self.in_flight: dict[int, StepPlan] = {}
        self.waiting_by_tier: Counter[Tier] = Counter()
        self.resident_tokens = 0
        self.hold_until = 0
        self.shares = Shares()
        self.batch = Batch(limits, cost, self.shares)
        self._expiring: list[tuple[float, int, Sequence]] = []
        self._suspected = 0
        self._next_plan_id = 0
        self._now = 0.0

    @property
    def cost(self) -> StepCost:
        """What steps are expected to take; may be replaced between steps."""
        return self.batch.cost

    @cost.setter
    def cost(self, cost: StepCost) -> None:
        self.batch.cost = cost

    @property
    def backlog(self) -> Backlog:
        return self.batch.backlog

    @property
    def backlog_tokens(self) -> int:
        """Of all steps that are not planned yet."""
        return self.backlog.tokens

    # -- coming and going ------------------------------------------------------------------------

    def add(self, sequence: Sequence, *, prepared: bool = True) -> None:
        """Take a sequence in. Arrival numbers must grow. One that is not prepared waits for that first."""
        self._now = max(self._now, sequence.arrived_at)
        self.waiting_by_tier[sequence.tier] += 1
        self.shares.enter(sequence.tenant)
        self.batch.enter(sequence, self._now)
        if sequence.expires_at < float("inf"):
            heappush(self._expiring, (sequence.expires_at, sequence.seq_id, sequence))
        if prepared:
            self._could_run(sequence)
        else:
            self.preparing[sequence.seq_id] = sequence

    def abort(self, seq_id: int) -> bool:
        """Forget a sequence. True if a runner may hold a slot for it."""
        waiting = seq_id in self.waiting
        row = self._find(seq_id) or self.waiting.get(seq_id)
        if row is not None:
            self._leave(row)
        return row is not None and not waiting

    def evict(self, row: Sequence, error: Exception, now: float) -> Ended:
        """A row that has not begun leaves for another's sake."""
        self._leave(row)
        return Ended(row, SequenceOutput(row.seq_id, error=error, epoch=row.epoch), now)

    def expire(self, now: float) -> list[Ended]:
        """Take out the rows that nobody wants any more, before they cost another step."""
        self._now, ended = now, []
        while self._expiring and self._expiring[0][0] <= now:
            _, _, row = heappop(self._expiring)
            if self._holds(row) and row.seq_id not in self.decoding:
                self._leave(row)
                error = DeadlineExceeded(f"not done within {now - row.arrived_at:.3g} s", param="timeout")
                ended.append(Ended(row, SequenceOutput(row.seq_id, error=error, epoch=row.epoch), now))
        return ended

    # -- the heart -------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """The next step, or None if nothing can run or enough is in flight."""
        self._now = now
        if len(self.in_flight) >= self.limits.max_concurrent_plans or self._held():
            return None
        rows = self.batch.choose(self._room(now), now)
        if not rows:
            return None
        plan = StepPlan(
            self._next_plan_id,
            tuple(PlannedRow(row.seq_id, row.next_step, row.chunk, row.epoch) for row in rows),
            sum(row.chunk.work.tokens for row in rows),
        )
        self._next_plan_id += 1
        self.in_flight[plan.plan_id] = plan
        for row in rows:
            self._start_step(row, plan.plan_id, now)
        return plan

    def complete(self, result: StepResult, now: float) -> list[Ended]:
        """Book a runner's news; returns the sequences that ended, in the runner's order."""
        self._now = now
        ended = []
        if result.plan_id is not None:
            plan = self.in_flight.pop(result.plan_id)
            if result.error is not None:
                ended += self._blame(plan, result.error, now)
            else:
                self._advance(plan, now)
        for seq_id in result.prepared:
            if (row := self.preparing.pop(seq_id, None)) is not None:
                self._could_run(row)
        for output in result.outputs:
            row = self._find(output.seq_id)
            if row is not None and row.epoch == output.epoch:
                self._leave(row)
                ended.append(Ended(row, output, now))
        return ended

    # -- bookkeeping -----------------------------------------------------------------------------

    def _held(self) -> bool:
        if len(self.waiting) >= self.hold_until:
            self.hold_until = 0
        return self.hold_until > 0

    def _room(self, now: float) -> Room:
        limits, resident = self.limits, len(self.running) + len(self.decoding)
        spare = 0 if self.batch.calm(now) else (limits.max_resident_seqs - limits.max_num_seqs) // 4
        bound = limits.max_resident_tokens
        return Room(
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            float("inf"),
            limits.max_resident_seqs - resident,
            spare,
            None if bound is None else bound - self.resident_tokens,
            vacant=not resident,
        )

    def _could_run(self, row: Sequence) -> None:
        self.waiting[row.seq_id] = row
        self.batch.queue(row)

    def _start_step(self, row: Sequence, plan_id: int, now: float) -> None:
        if self.waiting.pop(row.seq_id, None) is not None:
            self.waiting_by_tier[row.tier] -= 1
            row.started_at = now
            self.running[row.seq_id] = row
            self.resident_tokens += row.chunk.work.tokens
        self.batch.planned(row, plan_id, now)

    def _advance(self, plan: StepPlan, now: float) -> None:
        for planned in plan.rows:
            row = self.running.get(planned.seq_id)
            if row is None or row.epoch != planned.epoch:
                continue
            row.done_steps += 1
            row.last_step_at = now
            if row.done_steps >= row.cleared_at:
                row.suspects = 0
            if row.all_done:
                self.decoding[row.seq_id] = self.running.pop(row.seq_id)

    def _blame(self, plan: StepPlan, error: Exception, now: float) -> list[Ended]:
        """A whole plan failed. A lone row is at fault; of several, each half starts again by itself."""
        rows = [
            (row, planned.step)
            for planned in plan.rows
            if (row := self.running.get(planned.seq_id)) is not None and row.epoch == planned.epoch
        ]
        if len(plan.rows) == 1:
            return [self._fail(row, step, error, now) for row, step in rows]
        half = (len(rows) + 1) // 2
        for some in (rows[:half], rows[half:]):
            self._suspected += 1
            for row, step in some:
                row.alone = isinstance(error, CannotBatch)
                row.suspects, row.cleared_at = self._suspected, step + 1
                self.batch.start_again(row, now)
        return []

    def _fail(self, row: Sequence, step: int, error: Exception, now: float) -> Ended:
        self._leave(row)
        failure = InternalError(f"step {step} failed: {error!r}")
        failure.__cause__ = error
        return Ended(row, SequenceOutput(row.seq_id, error=failure, epoch=row.epoch), now)

    def _find(self, seq_id: int) -> Sequence | None:
        """A row a runner may have news of: one that waits for its first step has none."""
        return self.running.get(seq_id) or self.decoding.get(seq_id) or self.preparing.get(seq_id)

    def _holds(self, row: Sequence) -> bool:
        return (self._find(row.seq_id) or self.waiting.get(row.seq_id)) is row

    def _leave(self, row: Sequence) -> None:
        seq_id = row.seq_id
        if (self.running.pop(seq_id, None) or self.decoding.pop(seq_id, None)) is not None:
            self.resident_tokens -= row.chunk.work.tokens
        elif (self.waiting.pop(seq_id, None) or self.preparing.pop(seq_id, None)) is not None:
            self.waiting_by_tier[row.tier] -= 1
        self.batch.leave(row, self._now)
        self.shares.leave(row.tenant)
        here = len(self.preparing) + len(self.waiting) + len(self.running) + len(self.decoding)
        if len(self._expiring) > 64 + 2 * here:  # mostly rows that have ended in time
            self._expiring = [entry for entry in self._expiring if self._holds(entry[2])]
            heapify(self._expiring)
