"""Batch: who is in the next step.

Rows that run go on; those that wait join by urgency, then by the time at which they must start, as far as
the step's size goes (`step_size.py`). A row that somebody waits to hear makes others pause, which is free: a
row's state is its canvas. The order is least laxity, with keys fixed while a row waits (docs/scheduling.md).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from polychoir.engine.backlog import Backlog
from polychoir.engine.cost import StepCost, live_steps
from polychoir.engine.plan import Limits, Room
from polychoir.engine.ready import Found, Ready
from polychoir.engine.sequence import Sequence, Urgency
from polychoir.engine.shares import Shares
from polychoir.engine.step_size import step_size, target_s

STICKY_STEPS = 3
"""A row with so few steps left is not made to pause: it is soon gone."""
PRESSING_S = 0.25
"""A listener's next piece that must start within this goes before a first one that has longer."""
COMFORT_S = 2.0
"""One that must start within this goes before whoever waits for a whole."""
AGE_S = 30.0
"""Late by so much, the oldest row is as urgent as any, one row at a time."""
LOOK_S = 0.25
"""Between two looks for such a row."""
PATIENCE = 4.0
"""A first chunk that cannot be in time must start within this many times what it takes: short ones first."""
CALM_S = 10.0
"""Without a listener for so long, none is expected the next moment: steps are as large as they may be."""
PASSES, LOOKS = 64, 8
"""Rows that may pass over one too large for the room left; rows looked at to find one that fits."""


class Batch:
    """The rows that take part in the steps (`rows`), and those that could (`ready`), in the order of entry.

    `cost` may be replaced by a better curve between steps.
    """

    def __init__(self, limits: Limits, cost: StepCost, shares: Shares) -> None:
        self.limits = limits
        self.cost = cost
        self.rows: dict[int, Sequence] = {}
        self.buckets = False
        """Whether rows may have buckets: those of most models have none, until a plan fails."""
        self.ready = Ready(shares)
        self._shares = shares
        self.backlog = Backlog()
        self._listened_at = float("-inf")
        self._aged: Sequence | None = None
        self._looked_at = float("-inf")
        self._plans = 0

    def enter(self, row: Sequence, now: float) -> None:
        """The row is here; it may not be able to run yet."""
        row.weight = round(self.cost.weight(row.chunk.work))
        if row.urgency <= Urgency.LISTENING:
            self._listened_at = now
        self.backlog.enter(row, now)

    def queue(self, row: Sequence) -> None:
        """The row could run from now on, and does not."""
        self.rows.pop(row.seq_id, None)
        self.buckets = self.buckets or row.bucket is not None
        row.last_plan = self._plans
        self.ready.push(row, self._key(row))

    def leave(self, row: Sequence, now: float) -> None:
        """Its steps that are not planned never will be."""
        self.rows.pop(row.seq_id, None)
        self.ready.remove(row)
        self.backlog.leave(row, now)
        if row is self._aged:
            self._aged = None
        if not self.rows and not self.ready:
            self.buckets = False

    def start_again(self, row: Sequence, now: float) -> None:
        self.backlog.leave(row, now)
        row.start_again()
        self.backlog.enter(row, now)
        self.queue(row)

    def planned(self, row: Sequence, plan_id: int, now: float) -> None:
        """Its next step is in this plan."""
        self._plans = plan_id + 1
        row.next_step += 1
        row.last_plan = plan_id
        row.passed_over = 0
        self.backlog.step(row, now)
        if not row.all_planned:
            self.rows[row.seq_id] = row
        else:
            self.rows.pop(row.seq_id, None)
            self._aged = None if row is self._aged else self._aged

    def calm(self, now: float) -> bool:
        return now - self._listened_at > CALM_S

    def steps_until_room(self, weight: int, size: float, steps: int) -> float:
        """Steps until one more first chunk of `weight` tokens fits beside the others into steps of `size`.

        Those that run leave in the order of their steps left; those that wait, taken to be like the new one,
        come before it and stay for `steps` each.
        """
        leaving = [(row.steps_left, row.weight) for row in self.rows.values() if row.urgency is Urgency.FIRST]
        heapify(leaving)
        free, gone = size - sum(freed for _, freed in leaving), 0
        for _ in range(self.ready.weights[Urgency.FIRST] // weight + 1):
            while free < weight and leaving:
                gone, freed = heappop(leaving)
                free += freed
            free -= weight
            heappush(leaving, (gone + steps, weight))
        return gone

    # -- the choice ------------------------------------------------------------------------------

    def choose(self, room: Room, now: float) -> list[Sequence]:
        """The rows of the next step, all of one bucket: those that go on, then those that join."""
        self._age(now)
        ahead = self.limits.steps_ahead
        going = [row for row in self.rows.values() if row.next_step - row.done_steps < ahead]
        lead = self._lead(going, room, now)
        if lead is None:
            return []
        room.size = self._size(lead, now)
        if self.buckets:
            going = [row for row in going if row.bucket == lead.bucket]
        chosen = self._go_on(going, room)
        self._join(chosen, lead.bucket, room, now)
        return chosen

    def _lead(self, going: list[Sequence], room: Room, now: float) -> Sequence | None:
        """Whose bucket it is: of those that go on and the next to join, who was planned longest ago."""
        if going and not self.buckets:
            return going[0]
        oldest = min(going, key=_last_plan, default=None)
        joining = self._next(room, now)
        if joining is None or (oldest is not None and oldest.last_plan < joining[1].last_plan):
            return oldest
        return joining[1]

    def _size(self, lead: Sequence, now: float) -> float:
        if self.calm(now):
            return float("inf")
        steps = live_steps(lead.chunk.work)
        target = target_s(self.limits.ttfa_target_s, self.cost, lead.weight, steps)
        return step_size(self.backlog, self.cost, now, target_s=target, steps=steps)

    def _go_on(self, going: list[Sequence], room: Room) -> list[Sequence]:
        """Rows that stay in; the least urgent pause if there is no room for all and for the first chunks
        that wait."""
        reserved = min(room.size, self.ready.weights[Urgency.FIRST])
        room.size -= reserved
        tokens = sum(row.chunk.work.tokens for row in going)
        if sum(row.weight for row in going) > room.size or tokens > room.tokens or len(going) > room.rows:
            staying = [row for row in sorted(going, key=self._order) if self._stays(row, room)]
        else:
            staying = going
            for row in going:
                self._take(row, room)
        room.size += reserved
        return staying

    def _take(self, row: Sequence, room: Room) -> None:
        """It is in the next plan. Its tenant is charged at once: the next to join may be another's."""
        room.take(row)
        self._shares.serve(row.tenant, row.weight)

    def _stays(self, row: Sequence, room: Room) -> bool:
        """Takes the row's part of the room, or makes it pause."""
        vacant = room.rows == self.limits.max_num_seqs
        soft = row.weight <= room.size or row.urgency is Urgency.FIRST or row.steps_left <= STICKY_STEPS
        if soft and (vacant or (room.rows > 0 and row.chunk.work.tokens <= room.tokens)):
            self._take(row, room)
            return True
        self.queue(row)
        return False

    def _join(self, chosen: list[Sequence], bucket: int | None, room: Room, now: float) -> None:
        """Rows that wait join by urgency while they fit; the first of a plan always does. One that does not
        fit is passed over, but not for ever."""
        passed: list[Found] = []
        waiting_to_hear = self.backlog.weights[Urgency.FIRST] > 0
        while (not chosen or (room.rows > 0 and room.size > 0)) and len(passed) < LOOKS:
            found = self._next(room, now, (bucket,))
            if found is None:
                break
            key, row = found
            self.ready.remove(row)
            pressing = row.urgency is not Urgency.FIRST and key <= now + PRESSING_S
            if not chosen or room.fits(row, beyond=pressing or not waiting_to_hear):
                self._take(row, room)
                chosen.append(row)
                for _, larger in passed:
                    larger.passed_over += 1
                continue
            passed.append(found)
            if row.passed_over >= PASSES:
                break
        for key, row in passed:
            self.ready.push(row, key)

    def _next(self, room: Room, now: float, buckets: tuple[int | None] | None = None) -> Found | None:
        """The most urgent row that could join (of the bucket given)."""
        first = self.ready.first(Urgency.FIRST, now, room, buckets)
        while first is not None and self._hopeless(first[1], now):
            self._postpone(first[1], now)
            first = self.ready.first(Urgency.FIRST, now, room, buckets)
        listening = self.ready.first(Urgency.LISTENING, now, room, buckets)
        if first is not None:
            pressing = listening is not None and listening[0] <= min(now + PRESSING_S, first[0])
            return listening if pressing else first
        waiting = self.ready.first(Urgency.WAITING, now, room, buckets)
        if listening is not None and (waiting is None or listening[0] <= max(now + COMFORT_S, waiting[0])):
            return listening
        return waiting or self.ready.first(Urgency.IDLE, now, room, buckets)

    # -- urgency ---------------------------------------------------------------------------------

    def _key(self, row: Sequence) -> float:
        """When it must start to be in time, among others; fixed while it waits."""
        return row.deadline - self._among_others_s(row)

    def _order(self, row: Sequence) -> tuple[int, float, int]:
        return row.urgency, self._key(row), row.seq_id

    def _among_others_s(self, row: Sequence) -> float:
        return row.steps_left * self.cost.seconds(self.cost.knee) + self.cost.decode_s

    def _alone_s(self, row: Sequence) -> float:
        return row.steps_left * self.cost.seconds(row.weight) + self.cost.decode_s

    def _hopeless(self, row: Sequence, now: float) -> bool:
        return row is not self._aged and now + self._alone_s(row) > row.deadline

    def _postpone(self, row: Sequence, now: float) -> None:
        """Too late for a first chunk: out of the way of those that can still be in time."""
        deadline = now + PATIENCE * self._alone_s(row) + self._among_others_s(row)
        self._change(row, Urgency.WAITING, deadline, now)

    def _age(self, now: float) -> None:
        """Waiting never loses: the row that has been late for longest becomes as urgent as any. One at a
        time, so those that are in time hardly notice, and the k-th oldest is next after k rows at most."""
        if self._aged is None and now >= self._looked_at + LOOK_S:
            self._looked_at = now
            oldest = self.ready.oldest()
            if oldest is not None and oldest[0] + AGE_S <= now:
                self._aged = oldest[1]
                self._change(self._aged, Urgency.FIRST, self._aged.deadline, now)

    def _change(self, row: Sequence, urgency: Urgency, deadline: float, now: float) -> None:
        self.ready.remove(row)
        self.backlog.leave(row, now)
        row.urgency, row.deadline = urgency, deadline
        self.backlog.enter(row, now)
        self.ready.push(row, self._key(row))


def _last_plan(row: Sequence) -> int:
    return row.last_plan
