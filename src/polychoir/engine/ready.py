"""The rows that could be in the next step and are not running: newcomers, and rows that pause.

Heaps, not sorts: a row's key is the time by which it must start to be in time, fixed while it waits. One
heap for each urgency, tenant and bucket, and apart for rows that hold a slot already, since only those can
go on when all slots are taken.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from polychoir.engine.plan import Room
from polychoir.engine.sequence import Sequence, Urgency
from polychoir.engine.shares import Shares

EQUAL_S = {Urgency.FIRST: 0.3, Urgency.LISTENING: 1.0, Urgency.WAITING: 1.0, Urgency.IDLE: float("inf")}
"""Keys that differ by less are equally urgent: then the least served tenant goes first."""

Entry = tuple[float, int, int, Sequence]
"""Key, arrival number, entry, row: ties go by arrival, and rows are never compared."""

Found = tuple[float, Sequence]
"""A row and its key."""


class Ready:
    """Rows by urgency. `shares` decides between tenants."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._heaps: dict[tuple[Urgency, bool], dict[tuple[str, int | None], list[Entry]]] = {
            (urgency, held): {} for urgency in Urgency for held in (False, True)
        }
        self._counts = dict.fromkeys(self._heaps, 0)
        self._entries = 0
        self._void = 0
        self.weights = dict.fromkeys(Urgency, 0)
        """Tokens of the rows of each urgency in one step."""

    def __len__(self) -> int:
        return sum(self._counts.values())

    def push(self, row: Sequence, key: float) -> None:
        """key: seconds of the clock; the row must start by then."""
        self._entries += 1
        row.entry = self._entries
        kind = row.urgency, row.holds_slot
        heap = self._heaps[kind].setdefault((row.tenant, row.bucket), [])
        heappush(heap, (key, row.seq_id, row.entry, row))
        self._counts[kind] += 1
        self.weights[row.urgency] += row.weight

    def remove(self, row: Sequence) -> None:
        """Take a row out; what is left of it in its heap is void."""
        if not row.entry:
            return
        row.entry = 0
        self._counts[row.urgency, row.holds_slot] -= 1
        self.weights[row.urgency] -= row.weight
        self._void += 1
        if self._void > 64 + len(self):
            self._sweep()

    def first(
        self, urgency: Urgency, now: float, room: Room, buckets: tuple[int | None] | None = None
    ) -> Found | None:
        """Key and row of whose turn it is among the rows of this urgency that the house has a slot for (of
        the bucket given); None without any. Rows that are late are equally urgent."""
        heads = [head for head in self._heads(urgency, buckets) if room.houses(head[3])]
        if len(heads) <= 1:
            return (heads[0][0], heads[0][3]) if heads else None
        equal = max(min(heads)[0], now) + EQUAL_S[urgency]
        turn = min(
            (head for head in heads if head[0] <= equal),
            key=lambda head: (self._shares.served(head[3].tenant), head),
        )
        return turn[0], turn[3]

    def oldest(self) -> Found | None:
        """Key and row of the smallest key of all but those that are first anyway."""
        lesser = (Urgency.LISTENING, Urgency.WAITING, Urgency.IDLE)
        found = min((head for urgency in lesser for head in self._heads(urgency)), default=None)
        return None if found is None else (found[0], found[3])

    def _heads(self, urgency: Urgency, buckets: tuple[int | None] | None = None) -> list[Entry]:
        return [
            head
            for held in (True, False)
            if self._counts[urgency, held]
            for name in list(self._heaps[urgency, held])
            if (buckets is None or name[1] in buckets)
            and (head := self._head(self._heaps[urgency, held], name)) is not None
        ]

    def _head(
        self, heaps: dict[tuple[str, int | None], list[Entry]], name: tuple[str, int | None]
    ) -> Entry | None:
        """The first entry of a heap that is not void; a heap without any is forgotten."""
        heap = heaps[name]
        while heap and heap[0][3].entry != heap[0][2]:
            heappop(heap)
            self._void -= 1
        if heap:
            return heap[0]
        del heaps[name]
        return None

    def _sweep(self) -> None:
        """Most entries are void: leave only those that are not."""
        for heaps in self._heaps.values():
            for name in list(heaps):
                heaps[name] = [entry for entry in heaps[name] if entry[3].entry == entry[2]]
                heapify(heaps[name])
                if not heaps[name]:
                    del heaps[name]
        self._void = 0
