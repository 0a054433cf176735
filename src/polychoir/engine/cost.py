"""What work costs, in packed tokens: the unit that every decision of the scheduler is made in.

Seconds come later, from a fitted curve; until then one token costs what it cost on average so far.
"""

from __future__ import annotations

from collections.abc import Iterable

from polychoir.types import Work

UNKNOWN_STEPS = 256
"""Assumed for a row that only knows when it has ended (autoregressive models)."""


def remaining_tokens(work: Work, steps_done: int) -> int:
    """Tokens still to compute for a row: live steps left times tokens per step."""
    steps = UNKNOWN_STEPS if work.steps is None else work.steps
    return max(steps - steps_done, 0) * work.tokens


def backlog_s(rows: Iterable[tuple[Work, int]], tokens_per_s: float) -> float:
    """Seconds to work off rows given as (work, steps done); 0 while no speed is known."""
    if tokens_per_s <= 0:
        return 0.0
    return sum(remaining_tokens(work, done) for work, done in rows) / tokens_per_s
