"""How large a step and a house may be, and what is left of it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polychoir.engine.sequence import Sequence, Urgency
from polychoir.errors import SettingError
from polychoir.types import ModelInfo


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one engine; every one is reported by /health.

    max_num_seqs: rows in one step. max_num_batched_tokens: tokens in one step (a larger row runs alone).
    max_resident_seqs, max_resident_tokens: rows that hold a slot, paused ones included, and their tokens
    together (None: unbounded). max_concurrent_plans: plans in flight.
    steps_ahead: steps of one row in flight. queue_limit: waiting rows of one tier. ttfa_target_s: to a
    listener's first audio, where the device can do it.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_resident_seqs: int
    max_concurrent_plans: int
    steps_ahead: int = 1
    queue_limit: int = 2_000
    max_resident_tokens: int | None = None
    ttfa_target_s: float = 0.3

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
    ttfa_target_s: float = 0.3,
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
        ttfa_target_s=ttfa_target_s,
    )


def fitted(limits: Limits, step_tokens: int | None) -> Limits:
    """The limits with the step size that the loaded runner asks for, if it asks for one."""
    return limits if step_tokens is None else replace(limits, max_num_batched_tokens=step_tokens)


@dataclass(slots=True)
class Room:
    """What a plan still has room for, and what the house has for rows that hold no slot yet.

    rows, tokens: as the limits have it. size: tokens that the step should have, attention counted.
    slots: for newcomers; `spare` of them are kept for those that somebody waits to hear anything of.
    resident: tokens of newcomers; None where unbounded. vacant: nobody is in the house, so even a row larger
    than that may come.
    """

    rows: int
    tokens: int
    size: float
    slots: int
    spare: int = 0
    resident: int | None = None
    vacant: bool = False

    def houses(self, row: Sequence) -> bool:
        """Whether the row holds a slot or there is one for it."""
        if row.holds_slot:
            return True
        kept = 0 if row.urgency is Urgency.FIRST else self.spare
        fits = self.vacant or self.resident is None or row.chunk.work.tokens <= self.resident
        return self.slots > kept and fits

    def fits(self, row: Sequence, *, beyond: bool) -> bool:
        """Whether the row could join the plan beside those in it; beyond: the last one may pass the size."""
        soft = self.size > 0 if beyond else row.weight <= self.size
        return self.rows > 0 and row.chunk.work.tokens <= self.tokens and soft

    def take(self, row: Sequence) -> None:
        """The row is in, even if it is larger than the room: the first always goes."""
        tokens = row.chunk.work.tokens
        self.rows -= 1
        self.tokens -= tokens
        self.size -= row.weight
        if not row.holds_slot:
            self.slots -= 1
            self.vacant = False
            self.resident = None if self.resident is None else self.resident - tokens
