"""Scheduler: who is in the next step. First come, first served, by arrival number.

Pure bookkeeping over plain data: no clock, no threads, no tensors. `schedule` and `complete` are all that
the heart of the engine calls; a policy changes the order in `_order` and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from polychoir.engine.cost import ASSUMED, StepCost, remaining_tokens
from polychoir.engine.plan import Limits, Room, fill
from polychoir.engine.sequence import Ended, Sequence
from polychoir.errors import InternalError
from polychoir.types import PlannedRow, SequenceOutput, StepPlan, StepResult, Tier

SCAN_LIMIT = 4_096
"""Waiting rows looked at for one plan: bounds the work of a step whatever the queue holds."""


class Scheduler:
    """Holds every sequence from its arrival until its output.

    `preparing` cannot run yet, `waiting` have had no step, `running` hold a slot, `decoding` have had their
    last step and wait for their audio. All keep the order of entry (dicts keep insertion order), so plans
    never depend on hashes. `backlog_tokens`: of all steps that are not planned yet. `resident_tokens`: of
    the rows that hold a slot.
    """

    def __init__(self, limits: Limits, cost: StepCost = ASSUMED) -> None:
        self.limits = limits
        self.cost = cost
        self.preparing: dict[int, Sequence] = {}
        self.waiting: dict[int, Sequence] = {}
        self.running: dict[int, Sequence] = {}
        self.decoding: dict[int, Sequence] = {}
        self.in_flight: dict[int, StepPlan] = {}
        self.waiting_by_tier: Counter[Tier] = Counter()
        self.backlog_tokens = 0
        self.resident_tokens = 0
        self._next_plan_id = 0

    def add(self, sequence: Sequence, *, prepared: bool = True) -> None:
        """Take a sequence in. Arrival numbers must grow. One that is not prepared waits for that first."""
        (self.waiting if prepared else self.preparing)[sequence.seq_id] = sequence
        self.waiting_by_tier[sequence.tier] += 1
        self.backlog_tokens += _unplanned(sequence)

    def abort(self, seq_id: int) -> bool:
        """Forget a sequence. True if a runner may hold a slot for it."""
        waiting = seq_id in self.waiting
        return self._leave(seq_id) is not None and not waiting

    def schedule(self, now: float) -> StepPlan | None:
        """The next step, or None if nothing can run or enough is in flight."""
        if len(self.in_flight) >= self.limits.max_concurrent_plans:
            return None
        rows = fill(self._order(), self.limits, self._room())
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
            self._start_step(row, now)
        return plan

    def complete(self, result: StepResult, now: float) -> list[Ended]:
        """Book a runner's news; returns the sequences that ended, in the runner's order."""
        ended = []
        if result.plan_id is not None:
            plan = self.in_flight.pop(result.plan_id)
            if result.error is not None:
                ended += self._suspect(plan, result.error, now)
            else:
                self._advance(plan, now)
        for seq_id in result.prepared:
            if (ready := self.preparing.pop(seq_id, None)) is not None:
                self.waiting[seq_id] = ready
        for output in result.outputs:
            row = self._find(output.seq_id)
            if row is not None and row.epoch == output.epoch:
                self._leave(output.seq_id)
                ended.append(Ended(row, output, now))
        return ended

    # -- the order of service: the one place a policy touches ------------------------------------

    def _order(self) -> Iterator[Sequence]:
        """Rows that could run now, most urgent first."""
        ahead = self.limits.steps_ahead
        ready = (row for row in self.running.values() if row.in_flight < ahead and not row.all_planned)
        joiners = islice(self.waiting.values(), SCAN_LIMIT if self._room().slots > 0 else 0)
        return chain(ready, joiners)

    # -- bookkeeping -----------------------------------------------------------------------------

    def _room(self) -> Room:
        slots = self.limits.max_resident_seqs - len(self.running) - len(self.decoding)
        bound = self.limits.max_resident_tokens
        return Room(slots, None if bound is None else bound - self.resident_tokens)

    def _start_step(self, row: Sequence, now: float) -> None:
        if self.waiting.pop(row.seq_id, None) is not None:
            self.waiting_by_tier[row.tier] -= 1
            row.started_at = now
            self.running[row.seq_id] = row
            self.resident_tokens += row.chunk.work.tokens
        self.backlog_tokens -= _unplanned(row)
        row.next_step += 1
        self.backlog_tokens += _unplanned(row)

    def _advance(self, plan: StepPlan, now: float) -> None:
        for planned in plan.rows:
            row = self.running.get(planned.seq_id)
            if row is None or row.epoch != planned.epoch:
                continue
            row.done_steps += 1
            row.last_step_at = now
            if row.all_done:
                self.decoding[row.seq_id] = self.running.pop(row.seq_id)

    def _suspect(self, plan: StepPlan, error: Exception, now: float) -> list[Ended]:
        """A whole plan failed: a lone row is the culprit, others start again, each by itself."""
        ended = []
        for planned in plan.rows:
            row = self.running.get(planned.seq_id)
            if row is None or row.epoch != planned.epoch:
                continue
            if len(plan.rows) > 1:
                self.backlog_tokens -= _unplanned(row)
                row.start_again()
                self.backlog_tokens += _unplanned(row)
                continue
            self._leave(row.seq_id)
            failure = InternalError(f"step {planned.step} failed: {error!r}")
            failure.__cause__ = error
            ended.append(Ended(row, SequenceOutput(row.seq_id, error=failure, epoch=row.epoch), now))
        return ended

    def _find(self, seq_id: int) -> Sequence | None:
        """A row a runner may have news of: one that waits for its first step has none."""
        return self.running.get(seq_id) or self.decoding.get(seq_id) or self.preparing.get(seq_id)

    def _leave(self, seq_id: int) -> Sequence | None:
        if (row := self.running.pop(seq_id, None) or self.decoding.pop(seq_id, None)) is not None:
            self.resident_tokens -= row.chunk.work.tokens
        elif (row := self.waiting.pop(seq_id, None) or self.preparing.pop(seq_id, None)) is not None:
            self.waiting_by_tier[row.tier] -= 1
        self.backlog_tokens -= _unplanned(row) if row is not None else 0
        return row


def _unplanned(row: Sequence) -> int:
    return remaining_tokens(row.chunk.work, row.next_step)
