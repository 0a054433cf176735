"""How much work is wanted by when: a profile of the unfinished work by deadline.

Kept in buckets, so that one step of a row changes one number. It answers, for work done in the order of its
deadlines, the two questions of step size and of admission: how fast must the device work for all to be in
time, and by how much would some more work be late. Source: processor demand analysis (Baruah, Rosier and
Howell, Real-Time Systems 2, 1990).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

WIDTH_S = 0.125
SIGHT = 128
"""Buckets looked at one by one: 16 seconds. What is wanted later is one lump at twice their end: near
enough, since it is looked at again many times before it is due."""


class Demand:
    """Tokens still to be computed, by deadline. The time given to its methods never falls.

    Lenient by up to two widths of a bucket: a deadline counts at the end of its bucket, and one width later,
    or one row due now would ask for any pace. Those who set deadlines leave that much (`urgency.MARGIN_S`).
    """

    def __init__(self) -> None:
        self.total = 0
        self._late = 0
        self._buckets: dict[int, int] = {}
        """By number, counted from time 0; none is 0, so there are at most as many as there are rows."""
        self._first = 0

    def change(self, deadline: float, tokens: int, now: float) -> None:
        """Work came in (positive), or was planned or given up (negative)."""
        self._turn(now)
        self.total += tokens
        number = _number(deadline)
        if number < self._first:
            self._late += tokens
            return
        left = self._buckets.get(number, 0) + tokens
        if left:
            self._buckets[number] = left
        else:
            self._buckets.pop(number, None)

    def pace(self, now: float) -> float:
        """Tokens a second that finish everything in time."""
        return max((tokens / span for span, tokens in self._profile(now)), default=0.0)

    def due(self, deadline: float, now: float) -> int:
        """Tokens wanted by then, to the width of a bucket."""
        self._turn(now)
        last = min(_number(deadline), self._first + SIGHT)
        return self._late + sum(self._buckets.get(number, 0) for number in range(self._first, last + 1))

    def excess_s(self, more: Sequence[tuple[float, int]], pace: float, now: float) -> float:
        """Seconds by which the worst deadline is missed at `pace` tokens a second, with `more` work as pairs
        of deadline and tokens; 0 if all are met. Deadlines before the first of `more` are not its fault."""
        begin = min(deadline for deadline, _ in more) - now
        worst = 0.0
        for span, tokens in self._profile(now):
            if span >= begin:
                added = sum(work for deadline, work in more if deadline - now <= span)
                worst = max(worst, (tokens + added) / pace - span)
        return worst

    def _profile(self, now: float) -> Iterator[tuple[float, int]]:
        """Seconds from now, and the tokens wanted within them; everything at the end."""
        self._turn(now)
        tokens, get = self._late, self._buckets.get
        start = self._first
        for number in range(start, start + SIGHT):
            tokens += get(number, 0)
            yield (number + 1) * WIDTH_S - now + WIDTH_S, tokens
        if tokens < self.total:
            yield 2 * SIGHT * WIDTH_S, self.total

    def _turn(self, now: float) -> None:
        """What has become late is together."""
        number = int(now / WIDTH_S)
        if number == self._first:
            return
        if number - self._first > len(self._buckets):
            gone = [late for late in self._buckets if late < number]
        else:
            gone = [late for late in range(self._first, number) if late in self._buckets]
        self._late += sum(self._buckets.pop(late) for late in gone)
        self._first = number


def _number(deadline: float) -> int:
    return int(min(deadline, 1e9) / WIDTH_S)
