"""What is still to be done, kept up to date step by step: how much, how urgent, by when."""

from __future__ import annotations

from polychoir.engine.cost import live_steps
from polychoir.engine.demand import Demand
from polychoir.engine.sequence import Sequence, Urgency


class Backlog:
    """Tokens of steps that are not planned yet, attention included (`Sequence.weight`).

    `left`: by urgency. `weights`: tokens in one step of the rows of each urgency that still have steps to be
    planned. `listening`, first chunks included, and `waiting` know by when.
    """

    def __init__(self) -> None:
        self.left = dict.fromkeys(Urgency, 0)
        self.listening = Demand()
        self.waiting = Demand()
        self.weights = dict.fromkeys(Urgency, 0)

    @property
    def tokens(self) -> int:
        return sum(self.left.values())

    def enter(self, row: Sequence, now: float) -> None:
        """The row is here, with the steps it has left and the urgency it has."""
        left = _left(row)
        if left:
            self.weights[row.urgency] += row.weight
        self._change(row, left, now)

    def leave(self, row: Sequence, now: float) -> None:
        """The row goes, or is about to change."""
        left = _left(row)
        if left:
            self.weights[row.urgency] -= row.weight
        self._change(row, -left, now)

    def step(self, row: Sequence, now: float) -> None:
        """The row's next step was planned just now; `next_step` counts it."""
        if row.next_step <= live_steps(row.chunk.work):
            self._change(row, -row.weight, now)
            if row.next_step == live_steps(row.chunk.work):
                self.weights[row.urgency] -= row.weight

    def _change(self, row: Sequence, tokens: int, now: float) -> None:
        self.left[row.urgency] += tokens
        if row.urgency is Urgency.WAITING:
            self.waiting.change(row.deadline, tokens, now)
        elif row.urgency is not Urgency.IDLE:
            self.listening.change(row.deadline, tokens, now)


def _left(row: Sequence) -> int:
    return max(0, live_steps(row.chunk.work) - row.next_step) * row.weight
