"""Sequence: one chunk of speech being made; the unit the scheduler moves."""

from __future__ import annotations

from dataclasses import dataclass

from polychoir.types import Chunk, SequenceOutput, Tier


@dataclass(slots=True, eq=False)
class Sequence:
    """A chunk on its way through the engine. Only the scheduler changes it.

    `seq_id` is the arrival number: unique, growing, and the order of first come, first served.
    `next_step` is planned next; `done_steps` have come back; the difference is in flight.
    """

    seq_id: int
    request: int
    """The engine's own number of the request, shared by its chunks."""
    chunk: Chunk
    tier: Tier
    arrived_at: float
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
    def all_planned(self) -> bool:
        """True once its last step is planned. A row of unknown length never is: its runner ends it."""
        return self.chunk.work.steps is not None and self.next_step >= self.chunk.work.steps

    @property
    def all_done(self) -> bool:
        return self.chunk.work.steps is not None and self.done_steps >= self.chunk.work.steps

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
