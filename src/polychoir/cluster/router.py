"""Which worker gets a submission: the one that would be through with it first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polychoir.engine.core import EngineStats
from polychoir.engine.cost import backlog_s, remaining_tokens
from polychoir.types import Chunk


@dataclass(frozen=True, slots=True)
class Load:
    """tokens: of the steps of everything a worker was sent and has not brought back. rows: how many."""

    tokens: int
    rows: int
    stats: EngineStats

    @property
    def tokens_per_s(self) -> float:
        """Its pace so far; 0 before its first report."""
        return self.stats.tokens_total / self.stats.busy_s if self.stats.busy_s else 0.0


def tokens_of(chunks: Iterable[Chunk]) -> int:
    """Work of chunks that have not started."""
    return sum(remaining_tokens(chunk.work, 0) for chunk in chunks)


def choose(loads: Sequence[Load], tokens: int) -> int:
    """Number of the worker with the least predicted backlog, in seconds, once it has `tokens` more.

    What was sent is known at once and exactly, so no two submissions between two reports take the same
    worker for idle. A worker whose pace is not known yet is taken to be like the fastest of the others; as
    long as nobody's is, all are alike.
    """
    paces = [load.tokens_per_s for load in loads]
    assumed = max(paces, default=0.0) or 1.0

    def cost(number: int) -> tuple[float, int, int]:
        load = loads[number]
        return backlog_s(load.tokens + tokens, paces[number] or assumed), load.rows, number

    return min(range(len(loads)), key=cost)
