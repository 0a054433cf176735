"""Keeps a cost curve true while steps run: the shape stays as it was measured, its height follows.

One number is learned, how much slower steps are than the curve says, from the logarithm of each step's ratio.
A single step moves it by MOST at most, however long it took: a page fault or a compiler says nothing about
the next step. So it follows the middle of the steps, not their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

from polychoir.engine.cost import StepCost
from polychoir.types import StepPlan, StepSample

GAIN = 0.05
MOST = 0.02
"""By one step, in logarithms: 2 %. A device that has become twice as slow is believed after some 60 steps."""
FARTHEST = log(10.0)
"""A factor beyond this is no slow device but a broken clock."""
WORTH = 0.03
"""The curve is replaced when it differs by more; a smaller change changes no decision."""


class Refinement:
    """Fed with real steps, gives the curve as it is today. `factor`: what the base curve is multiplied by."""

    def __init__(self, base: StepCost) -> None:
        self._base = base
        self._drift = 0.0
        self._given = 0.0

    @property
    def factor(self) -> float:
        return exp(self._drift)

    def observe(self, step: StepSample) -> StepCost | None:
        """Learn from a step. The new curve where it has become worth a change, else None."""
        expected = self._base.seconds(step.tokens, step.squares)
        if step.seconds <= 0 or expected <= 0:
            return None
        error = log(step.seconds / expected) - self._drift
        self._drift += min(max(GAIN * error, -MOST), MOST)
        self._drift = min(max(self._drift, -FARTHEST), FARTHEST)
        if abs(self._drift - self._given) <= log(1 + WORTH):
            return None
        self._given = self._drift
        return self._base.scaled(self.factor)


@dataclass(frozen=True, slots=True)
class _Started:
    plan: StepPlan
    at: float


class StepTimes:
    """From submits and reports to seconds of single steps, by the engine's clock.

    lanes: plans that run side by side; with one, a plan submitted early waits for the one before it. lag 1:
    a plan is reported when the step before it is over, so its own end shows in the next report; the last one
    before a pause stays unknown.
    """

    def __init__(self, lanes: int = 1, lag: int = 0) -> None:
        self._alone = lanes == 1
        self._late = lag > 0
        self._started: dict[int, _Started] = {}
        """At most as many as plans in flight."""
        self._free_at = float("-inf")
        self._before: _Started | None = None

    def submitted(self, plan: StepPlan, now: float) -> None:
        self._started[plan.plan_id] = _Started(plan, now)

    def idle(self) -> None:
        """Nothing is in flight, and nothing could be submitted."""
        self._before = None

    def reported(self, plan_id: int | None, *, failed: bool, now: float) -> StepSample | None:
        """The step whose time is known by this report, if any."""
        started = None if plan_id is None else self._started.pop(plan_id, None)
        if started is None:
            return None
        if self._late:
            return self._reported_late(started, failed=failed, now=now)
        begun = max(started.at, self._free_at) if self._alone else started.at
        self._free_at = now
        return None if failed else _sample(started.plan, now - begun)

    def _reported_late(self, started: _Started, *, failed: bool, now: float) -> StepSample | None:
        """The step before has just ended, and this one has just begun; if there was none before, this one
        began when it was submitted."""
        before = self._before
        begun = started.at if before is None else now
        self._before = None if failed else _Started(started.plan, begun)
        return None if failed or before is None else _sample(before.plan, now - before.at)


def _sample(plan: StepPlan, seconds: float) -> StepSample:
    return StepSample(plan.tokens, sum(row.chunk.work.squares for row in plan.rows), seconds)
