"""Who is let in. Exact work is known on arrival, so a full house says so at once."""

from __future__ import annotations

from polychoir.engine.cost import backlog_s
from polychoir.engine.scheduler import Scheduler
from polychoir.errors import Overloaded
from polychoir.types import Tier

MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


def admit(scheduler: Scheduler, rows: int, tier: Tier, tokens_per_s: float) -> None:
    """Raise Overloaded if `rows` more of this tier would pass the queue's bound.

    A request with more rows than the bound is taken by an empty queue only: refusing it for ever would
    make the bound a limit on text length, which has a setting of its own.
    """
    waiting = scheduler.waiting_by_tier[tier]
    if waiting == 0 or waiting + rows <= scheduler.limits.queue_limit:
        return
    backlog = backlog_s(scheduler.backlog_tokens, tokens_per_s)
    raise Overloaded(
        f"the {tier} queue is full ({waiting} rows waiting)",
        retry_after_s=min(max(backlog, MIN_RETRY_S), MAX_RETRY_S),
    )
