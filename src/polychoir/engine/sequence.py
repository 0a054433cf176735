"""Sequence: one chunk of speech being made; the unit the scheduler moves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from polychoir.engine.cost import live_steps
from polychoir.types import Chunk, SequenceOutput, Tier


class Urgency(IntEnum):
    """FIRST: somebody waits to hear anything. SLACK: it is wanted by some time. IDLE: whenever."""

    FIRST = 0
    SLACK = 1
    IDLE = 2


@dataclass(slots=True, eq=False)
class Sequence:
    """A chunk on its way through the engine. Only the scheduler changes it. Times in seconds of its clock.

    `seq_id` is the arrival number: unique and growing. `next_step` is planned next; `done_steps` have come
    back; the difference is in flight.
    """

    seq_id: int
    request: int
    """The engine's own number of the request, shared by its chunks."""
    chunk: Chunk
    tier: Tier
    arrived_at: float
    tenant: str = ""
    """Whose share of the device it uses."""
    urgency: Urgency = Urgency.SLACK
    deadline: float = float("inf")
    """When its audio is wanted."""
    expires_at: float = float("inf")
    """Not started by then: nobody wants it any more."""
    next_step: int = 0
    done_steps: int = 0
    epoch: int = 0
    alone: bool = False
    """A plan with this row in it failed: it runs by itself until the row at fault is known."""
    started_at: float | None = None
    last_step_at: float | None = None

    @property
    def in_flight(self) -> int:
        return self.next_step - self.done_steps

    @property
    def steps_left(self) -> int:
        """Not planned yet; at least 1 where only the runner knows the end."""
        left = live_steps(self.chunk.work) - self.next_step
        return max(left, 1) if self.chunk.work.steps is None else left

    @property
    def all_planned(self) -> bool:
        """True once its last step is planned. A row of unknown length never is: its runner ends it."""
        return self.chunk.work.steps is not None and self.next_step >= self.chunk.work.steps

    @property
    def all_done(self) -> bool:
        return self.chunk.work.steps is not None and self.done_steps >= self.chunk.work.steps

    @property
    def holds_slot(self) -> bool:
        """It has run, so a runner keeps its state, even while it pauses."""
        return self.started_at is not None

    def start_again(self) -> None:
        """Back to step 0 by itself. Noise is a function of the step, so the result is the same."""
        self.next_step = self.done_steps = 0
        self.epoch += 1
        self.alone = True


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence that has left the scheduler, with what it left behind. Times in seconds."""

    sequence: Sequence
    output: SequenceOutput
    at: float

    @property
    def queue_s(self) -> float:
        started = self.sequence.started_at
        return (self.at if started is None else started) - self.sequence.arrived_at

    @property
    def run_s(self) -> float:
        first, last = self.sequence.started_at, self.sequence.last_step_at
        return 0.0 if first is None or last is None else last - first
