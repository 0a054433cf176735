"""Stand-ins for driving the engine without a model: rows by hand, a clock by hand, a runner that counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from polychoir.engine.plan import Limits
from polychoir.engine.sequence import Sequence, Urgency
from polychoir.types import Chunk, Device, Measured, SequenceOutput, StepPlan, StepResult, Tier, Work


def limits(**changes: int) -> Limits:
    values = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 100,
        "max_resident_seqs": 8,
        "max_concurrent_plans": 1,
        "steps_ahead": 1,
        "queue_limit": 2_000,
    }
    values.update(changes)
    return Limits(**values)


def chunk(
    tokens: int = 10,
    steps: int | None = 3,
    *,
    index: int = 0,
    bucket: int | None = None,
    payload: object = None,
) -> Chunk:
    return Chunk(index, f"chunk {index}", Work(tokens, steps, bucket), payload)


def row(
    seq_id: int, tokens: int = 10, steps: int | None = 3, *, tier: Tier = "standard", **more: object
) -> Sequence:
    return Sequence(seq_id, seq_id, chunk(tokens, steps, **more), tier, arrived_at=float(seq_id))


def urgent(
    seq_id: int,
    urgency: Urgency,
    deadline: float,
    *,
    tokens: int = 10,
    steps: int = 3,
    tenant: str = "",
    arrived_at: float = 0.0,
) -> Sequence:
    """A row wanted by a time."""
    tier: Tier = {Urgency.WAITING: "standard", Urgency.IDLE: "batch"}.get(urgency, "interactive")
    made = Sequence(seq_id, seq_id, chunk(tokens, steps), tier, arrived_at, tenant)
    made.urgency, made.deadline = urgency, deadline
    return made


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class CountingRunner:
    """Finishes every plan when told to, one after the other; notes what it was asked to do.

    `fail` may raise for a plan (the whole plan fails) or return outputs for rows that fail by themselves.
    """

    fail: Callable[[StepPlan], Iterable[SequenceOutput]] = lambda plan: ()
    ends: dict[int, int] = field(default_factory=dict)
    """Rows of unknown length: the step after which they end."""
    plans: list[StepPlan] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    pending: deque[StepPlan] = field(default_factory=deque)
    ready: list[StepResult] = field(default_factory=list)
    closed: bool = False
    step_tokens: int | None = None
    device: Device = field(default_factory=lambda: Device("cpu", "no device"))
    measured: Measured = field(default_factory=Measured)
    unprepared: set[int] = field(default_factory=set)
    """Rows that cannot run until `prepared` is told of them."""

    def measure(self) -> Measured:
        return self.measured

    def prepare(self, seq_id: int, chunk: Chunk) -> bool:
        return seq_id not in self.unprepared

    def prepared(self, seq_id: int, error: Exception | None = None) -> None:
        """What the row needed is there, or could not be made."""
        ends = () if error is None else (SequenceOutput(seq_id, error=error),)
        self.ready.append(StepResult(None, ends, prepared=() if error else (seq_id,)))

    def submit(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        self.pending.append(plan)

    def finish(self) -> None:
        """Run the oldest plan."""
        plan = self.pending.popleft()
        try:
            failed = {output.seq_id: output for output in self.fail(plan)}
        except Exception as error:
            self.ready.append(StepResult(plan.plan_id, error=error))
            return
        outputs = list(failed.values())
        for planned in plan.rows:
            last = self.ends.get(planned.seq_id, (planned.chunk.work.steps or 10**9) - 1)
            if planned.step == last and planned.seq_id not in failed:
                sound = np.full(4, planned.seq_id, np.float32)
                outputs.append(SequenceOutput(planned.seq_id, sound, epoch=planned.epoch))
        self.ready.append(StepResult(plan.plan_id, tuple(outputs)))

    def poll(self) -> list[StepResult]:
        results, self.ready = self.ready, []
        return results

    def drop(self, seq_id: int) -> None:
        self.dropped.append(seq_id)

    def close(self) -> None:
        self.closed = True
