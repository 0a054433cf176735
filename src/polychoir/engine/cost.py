"""What work costs, in packed tokens: the unit that every decision of the scheduler is made in.

Seconds come later, from a fitted curve; until then one token costs what it cost on average so far.
"""

from __future__ import annotations

from polychoir.types import Work

UNKNOWN_STEPS = 256
"""Assumed for a row that only knows when it has ended (autoregressive models)."""


def remaining_tokens(work: Work, steps_done: int) -> int:
    """Tokens still to compute for a row: live steps left times tokens per step."""
    steps = UNKNOWN_STEPS if work.steps is None else work.steps
    return max(steps - steps_done, 0) * work.tokens


def backlog_s(tokens: int, tokens_per_s: float) -> float:
    """Seconds to work off that many tokens; 0 while no speed is known."""
    return tokens / tokens_per_s if tokens_per_s > 0 else 0.0
