"""Who is let in. The exact work is known on arrival, so a full house says so at once, and for how long.

A listener is let in if there is no other, or if the first chunk is predicted within the target and nobody's
playback, the newcomer's included, would run dry. Others wait; they are refused at the queue's bound only, or
when they would not be done within their timeout. A request that goes on is never refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from polychoir.engine.cost import live_steps
from polychoir.engine.scheduler import Scheduler
from polychoir.engine.sequence import Urgency
from polychoir.engine.step_size import FULL_SHARE, quick_size, target_s
from polychoir.engine.urgency import wanted
from polychoir.errors import Overloaded
from polychoir.types import Chunk, Terms

SURE = 0.85
"""Of the pace that the curve promises: what is let in is in time even if a little goes wrong."""
CERTAIN = 0.85
"""Of the target, what the predicted first audio may take."""
MIN_RETRY_S, MAX_RETRY_S = 0.05, 600.0

Wanted = list[tuple[Urgency, float]]


def admit(scheduler: Scheduler, chunks: Sequence[Chunk], terms: Terms, now: float) -> Wanted:
    """Urgency and deadline of each chunk. Raises Overloaded, with the seconds until it would be let in."""
    first = chunks[0].work
    target = target_s(
        scheduler.limits.ttfa_target_s, scheduler.cost, scheduler.cost.weight(first), live_steps(first)
    )
    found = wanted(chunks, terms.tier, now, target, terms.heard_s)
    if terms.more:
        return found
    _check_queue(scheduler, len(chunks), terms)
    if terms.tier == "interactive" and scheduler.backlog.listening.total:
        _check_listeners(scheduler, chunks, found, now)
    elif terms.tier == "standard" and terms.timeout_s is not None:
        _check_timeout(scheduler, chunks, terms.timeout_s)
    return found


def predicted_ttfa_s(scheduler: Scheduler, first: Chunk, now: float) -> float:
    """Seconds to the audio of a first chunk that arrived now.

    It waits for room among the first chunks if they fill the largest step that is quick enough, then shares
    steps with them; what other listeners need by then is done before.
    """
    cost, steps, backlog = scheduler.cost, live_steps(first.work), scheduler.backlog
    weight = max(1, round(cost.weight(first.work)))
    target = target_s(scheduler.limits.ttfa_target_s, cost, weight, steps)
    quick = max(_quick(scheduler, target, steps), weight)
    waits = scheduler.batch.steps_until_room(weight, quick, steps) * cost.seconds(quick)
    runs = steps * cost.seconds(min(backlog.weights[Urgency.FIRST] + weight, quick))
    due = max(0, backlog.listening.due(now + target, now) - backlog.left[Urgency.FIRST])
    step = cost.seconds(sum(plan.tokens for plan in scheduler.in_flight.values()))
    return step + waits + runs + due / cost.pace(quick) + cost.decode_s


def _check_listeners(scheduler: Scheduler, chunks: Sequence[Chunk], found: Wanted, now: float) -> None:
    late = _late_s(scheduler, chunks, found, now)
    if late > 0:
        raise _overloaded("the first audio would come late", late)


def _late_s(scheduler: Scheduler, chunks: Sequence[Chunk], found: Wanted, now: float) -> float:
    """Seconds by which the first audio or the worst of the deadlines would be missed; 0 or less if not."""
    cost, steps = scheduler.cost, live_steps(chunks[0].work)
    target = target_s(scheduler.limits.ttfa_target_s, cost, cost.weight(chunks[0].work), steps)
    more = [
        (deadline, round(live_steps(chunk.work) * cost.weight(chunk.work)))
        for chunk, (_, deadline) in zip(chunks, found, strict=True)
    ]
    excess = scheduler.backlog.listening.excess_s(more, SURE * _pace(scheduler, target, steps), now)
    return max(predicted_ttfa_s(scheduler, chunks[0], now) - CERTAIN * target, excess)


def _check_timeout(scheduler: Scheduler, chunks: Sequence[Chunk], timeout_s: float) -> None:
    cost, backlog = scheduler.cost, scheduler.backlog
    mine = sum(live_steps(chunk.work) * cost.weight(chunk.work) for chunk in chunks)
    ahead = backlog.listening.total + backlog.waiting.total
    late = (ahead + mine) / cost.pace(scheduler.limits.max_num_batched_tokens) - timeout_s
    if late > 0 and ahead:
        raise _overloaded(f"it would not be done within {timeout_s:g} s", late)


def _check_queue(scheduler: Scheduler, rows: int, terms: Terms) -> None:
    """A request with more rows than the bound is taken by an empty queue only: refusing it for ever would
    make the bound a limit on text length, which has a setting of its own."""
    if queue_full(scheduler, rows, terms):
        raise queue_refusal(scheduler, rows, terms)


def queue_full(scheduler: Scheduler, rows: int, terms: Terms) -> bool:
    """Whether so many rows more would pass the bound of their tier."""
    waiting = scheduler.waiting_by_tier[terms.tier]
    return not terms.more and waiting > 0 and waiting + rows > scheduler.limits.queue_limit


def queue_refusal(scheduler: Scheduler, rows: int, terms: Terms) -> Overloaded:
    """What is told: the seconds until the waiting rows have become few enough."""
    waiting, limit = scheduler.waiting_by_tier[terms.tier], scheduler.limits.queue_limit
    backlog = scheduler.backlog.tokens / scheduler.cost.pace(scheduler.limits.max_num_batched_tokens)
    too_many = min(1.0, (waiting + rows - limit) / waiting)
    return _overloaded(f"the {terms.tier} queue is full ({waiting} rows waiting)", backlog * too_many)


def _quick(scheduler: Scheduler, target: float, steps: int) -> float:
    return min(quick_size(scheduler.cost, target, steps, FULL_SHARE), scheduler.limits.max_num_batched_tokens)


def _pace(scheduler: Scheduler, target: float, steps: int) -> float:
    """Tokens a second in steps as large as they become while listeners wait."""
    return scheduler.cost.pace(max(1.0, _quick(scheduler, target, steps)))


def _overloaded(why: str, retry_s: float) -> Overloaded:
    return Overloaded(why, retry_after_s=min(max(retry_s, MIN_RETRY_S), MAX_RETRY_S))
