"""Sequence: one chunk of speech being made; the unit the scheduler moves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from polychoir.engine.cost import live_steps
from polychoir.types import Chunk, SequenceOutput, Tier


class Urgency(IntEnum):
    """Who goes first when not all can.

    FIRST: somebody waits to hear anything. LISTENING: the next piece for somebody who hears the ones before
    it. WAITING: somebody waits for the whole. IDLE: whenever.
    """

    FIRST = 0
    LISTENING = 1
    WAITING = 2
    IDLE = 3


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
    urgency: Urgency = Urgency.WAITING
    deadline: float = float("inf")
    """When its audio is wanted."""
    expires_at: float = float("inf")
    """Not done by then: nobody wants it any more."""
    next_step: int = 0
    done_steps: int = 0
    epoch: int = 0
    suspects: int = 0
    """Number of the group of rows that a failed plan is blamed on, while the row at fault is looked for."""
    cleared_at: int = 0
    """The step from which it is no suspect any more."""
    alone: bool = False
    """The model cannot run it together with others."""
    weight: int = 0
    """Its tokens in a step, attention counted as the tokens it costs as much as (`StepCost.weight`)."""
    last_plan: int = -1
    """Number of the plan it was last in, or that was next when it began to wait."""
    entry: int = 0
    """Its place among the rows that are ready (`ready.py`); 0 while it has none."""
    passed_over: int = 0
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

    @property
    def bucket(self) -> int | None:
        """Rows of one plan share it. Suspects, and rows that run alone, have one to themselves."""
        if self.alone:
            return ~(2 * self.seq_id)
        return ~(2 * self.suspects + 1) if self.suspects else self.chunk.work.bucket

    def start_again(self) -> None:
        """Back to step 0. Noise is a function of the step, so the result is the same."""
        self.next_step = self.done_steps = 0
        self.epoch += 1


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
