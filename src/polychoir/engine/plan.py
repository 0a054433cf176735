"""How large a step may be, and which rows fill it. Pure functions over plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from polychoir.engine.sequence import Sequence
from polychoir.errors import SettingError
from polychoir.types import ModelInfo


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one engine; every one is reported by /health.

    max_num_seqs: rows in one step. max_num_batched_tokens: tokens in one step (a larger row runs alone).
    max_resident_seqs, max_resident_tokens: rows that hold a slot, paused ones included, and their tokens
    together (None: unbounded). max_concurrent_plans: plans in flight.
    steps_ahead: steps of one row in flight. queue_limit: waiting rows of one tier.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_resident_seqs: int
    max_concurrent_plans: int
    steps_ahead: int = 1
    queue_limit: int = 2_000
    max_resident_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_concurrent_plans", "queue_limit"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be at least 1", param=name)
        if self.max_resident_seqs < self.max_num_seqs:
            raise SettingError("max_resident_seqs must not be below max_num_seqs", param="max_resident_seqs")


def limits_for(
    info: ModelInfo,
    *,
    batch: bool = True,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_resident_seqs: int | None = None,
    max_concurrent_plans: int | None = None,
    queue_limit: int = 2_000,
) -> Limits:
    """Resolve settings (None = default) against what the model can do.

    `max_concurrent_plans` is a ceiling. An iterative model on one device keeps `steps_ahead` plans in
    flight at most: with more, rows would split into separate batches that never meet again.
    """
    rows = max_num_seqs or (256 if info.kind == "iterative" else 8)
    rows = min(rows, info.max_rows or rows)
    plans = max_concurrent_plans or info.default_concurrent_plans
    if info.kind == "iterative":
        plans = min(max_concurrent_plans or info.steps_ahead, info.steps_ahead)
    resident = max_resident_seqs or max(4 * rows, rows * plans)
    if not batch:
        rows = plans = resident = 1
    return Limits(
        max_num_seqs=rows,
        max_num_batched_tokens=max_num_batched_tokens or info.max_num_batched_tokens,
        max_resident_seqs=resident,
        max_concurrent_plans=plans,
        steps_ahead=info.steps_ahead if batch else 1,
        queue_limit=queue_limit,
        max_resident_tokens=info.max_resident_tokens,
    )


def fitted(limits: Limits, step_tokens: int | None) -> Limits:
    """The limits with the step size that the loaded runner asks for, if it asks for one."""
    return limits if step_tokens is None else replace(limits, max_num_batched_tokens=step_tokens)


@dataclass(slots=True)
class Room:
    """What is left for rows that have not started: slots, and tokens where they are bounded."""

    slots: int
    tokens: int | None = None

    def take(self, row: Sequence) -> bool:
        """True if the row holds a slot already or gets one now."""
        if row.next_step > 0 or row.epoch > 0:
            return True
        tokens = row.chunk.work.tokens
        if self.slots <= 0 or (self.tokens is not None and tokens > self.tokens):
            return False
        self.slots -= 1
        self.tokens = None if self.tokens is None else self.tokens - tokens
        return True


def fill(order: Iterable[Sequence], limits: Limits, room: Room) -> list[Sequence]:
    """Take rows in the given order until the step is full.

    The first row always gets in, however large; a later row that does not fit is passed over, so the
    order decides who runs now and nobody can be passed over for ever: everyone becomes first. A row that
    has not started needs `room`. Rows of another bucket than the first wait for a plan of their own; so does
    a row that must run alone.
    """
    chosen: list[Sequence] = []
    tokens = 0
    for row in order:
        if (chosen and not _joins(row, chosen[0], tokens, limits)) or not room.take(row):
            continue
        chosen.append(row)
        tokens += row.chunk.work.tokens
        if row.alone or len(chosen) >= limits.max_num_seqs or tokens >= limits.max_num_batched_tokens:
            break
    return chosen


def _joins(row: Sequence, first: Sequence, tokens: int, limits: Limits) -> bool:
    work = row.chunk.work
    fits = tokens + work.tokens <= limits.max_num_batched_tokens
    return fits and not row.alone and work.bucket == first.chunk.work.bucket
