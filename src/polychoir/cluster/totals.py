"""One snapshot for many workers, and for those that went before them: counters never go backwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from polychoir.engine.core import EngineStats

_NOW: Mapping[str, Any] = {
    "waiting": 0,
    "waiting_by_tier": {},
    "backlog_s": 0.0,
    "running": 0,
    "decoding": 0,
    "plans_in_flight": 0,
    "step_tokens": 0,
}
"""What is true of a moment only, and its value for a worker that has ended."""


def past(stats: EngineStats) -> EngineStats:
    """What remains of the last snapshot of a worker that has ended: its counters."""
    return replace(stats, **_NOW)


def total(snapshots: Iterable[EngineStats]) -> EngineStats:
    """The sum of all."""
    every = tuple(snapshots)
    if not every:
        return EngineStats()
    sums = {field.name: _sum([getattr(one, field.name) for one in every]) for field in fields(EngineStats)}
    return EngineStats(**sums)


def _sum(values: list[Any]) -> Any:
    if not isinstance(values[0], Mapping):
        return sum(values)
    counts: Counter[Any] = Counter()
    for value in values:
        counts.update(value)
    return dict(counts)
