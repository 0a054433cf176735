"""Who makes way in a full queue: of a tier's requests that have not begun, the worst, for a better one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Rows
from itertools import chain

from polychoir.engine.cost import live_steps
from polychoir.engine.scheduler import Scheduler
from polychoir.engine.sequence import Sequence
from polychoir.types import Chunk, Terms

SMALLER = 4.0
"""A newcomer with this many times less work is better: it keeps others waiting so much less."""


def worst_queued(scheduler: Scheduler, chunks: Rows[Chunk], terms: Terms) -> list[Sequence]:
    """The rows of the request that makes way for `chunks`, or none.

    First a tenant with more rows waiting than the newcomer's would have, its largest request; else the
    largest of anybody with no fewer rows waiting, if the newcomer is much smaller. Nothing that has begun to
    be spoken is given up.
    """
    queued, held = _queued(scheduler, terms)
    mine = held[terms.tenant] + len(chunks)
    work = sum(live_steps(chunk.work) * chunk.work.tokens for chunk in chunks)
    room = scheduler.limits.queue_limit - scheduler.waiting_by_tier[terms.tier]

    def worth(rows: list[Sequence]) -> tuple[int, int]:
        return held[rows[0].tenant], sum(row.steps_left * row.chunk.work.tokens for row in rows)

    def yields(rows: list[Sequence]) -> bool:
        theirs, size = worth(rows)
        greedy, large = theirs > mine, theirs >= mine - len(chunks) and size > SMALLER * work
        return (greedy or large) and room + len(rows) >= len(chunks)

    return max(filter(yields, queued.values()), key=worth, default=[])


def _queued(scheduler: Scheduler, terms: Terms) -> tuple[dict[int, list[Sequence]], Counter[str]]:
    """Requests of the tier of which nothing has run, by number; and waiting rows by tenant."""
    begun = {row.request for row in chain(scheduler.running.values(), scheduler.decoding.values())}
    requests: dict[int, list[Sequence]] = {}
    held: Counter[str] = Counter()
    for row in chain(scheduler.waiting.values(), scheduler.preparing.values()):
        if row.tier == terms.tier:
            held[row.tenant] += 1
            if row.request not in begun:
                requests.setdefault(row.request, []).append(row)
    whole = {number: rows for number, rows in requests.items() if any(row.chunk.index == 0 for row in rows)}
    return whole, held
