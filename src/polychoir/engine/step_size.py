"""How large the next step should be: the smallest that serves everybody in time.

A step's size trades the first chunk's latency for throughput, so it is a control variable. Small steps while
somebody waits to hear anything and the backlog is light; up to the knee when the backlog needs the pace.
"""

from __future__ import annotations

from polychoir.engine.backlog import Backlog
from polychoir.engine.cost import StepCost
from polychoir.engine.sequence import Urgency

HEADROOM = 1.1
"""Pace over what the deadlines ask for: they are met with something in hand for who comes next."""
DRAIN_S = 8.0
"""The whole backlog would be done in so many seconds: lazier than listeners, whose buffers fill in time."""
SHARE = 0.6
"""Of the target to first audio, what the steps of a first chunk may take when later ones run beside it."""
FULL_SHARE = 0.7
"""The same when first chunks alone fill the steps: larger ones serve more of them in time."""
STRETCH = 1.5
"""The target is never less than this many times what a first chunk takes alone."""
IDLE_SHARE = 0.8
"""Of the device's limit, the pace of steps that idle rows fill while listeners may come at any moment."""


def step_size(backlog: Backlog, cost: StepCost, now: float, *, target_s: float, steps: int) -> float:
    """Tokens for the next step; infinite if nothing less is enough.

    target_s: to the first audio of a listener, with `steps` steps to go.
    """
    size = _keeping_up(backlog, cost, now)
    first = backlog.weights[Urgency.FIRST]
    if first:
        full = quick_size(cost, target_s, steps, FULL_SHARE)
        return max(min(first, full), min(size, quick_size(cost, target_s, steps, SHARE)))
    if backlog.left[Urgency.IDLE]:
        size = max(size, cost.size_for(IDLE_SHARE * cost.lanes / cost.per_token_s))
    return size


def quick_size(cost: StepCost, target_s: float, steps: int, share: float) -> float:
    """Tokens of the largest steps of which so many fit into this share of the target."""
    return max(0.0, (share * target_s / max(steps, 1) - cost.host_s) / cost.per_token_s)


def _keeping_up(backlog: Backlog, cost: StepCost, now: float) -> float:
    pace = backlog.listening.pace(now) + backlog.waiting.pace(now)
    drain = (backlog.listening.total + backlog.waiting.total) / DRAIN_S
    return cost.size_for(HEADROOM * max(pace, drain))


def target_s(wanted_s: float, cost: StepCost, weight: float, steps: int) -> float:
    """Seconds to the first audio to aim at, for a first chunk of so many tokens in each of its steps."""
    return max(wanted_s, STRETCH * (steps * cost.seconds(weight) + cost.decode_s))
