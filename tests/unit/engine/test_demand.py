"""The profile of work by deadline, against sums over a plain list."""

from __future__ import annotations

import random

import pytest

from polychoir.engine.demand import SIGHT, WIDTH_S, Demand


def pace_by_hand(rows, now):
    """Rounded as the profile rounds: a deadline counts at the end of its bucket, and one bucket of grace."""
    ends = sorted({(int(max(d, now) / WIDTH_S) + 1) * WIDTH_S for d, _ in rows})
    paces = []
    for end in ends:
        due = sum(work for d, work in rows if (int(max(d, now) / WIDTH_S) + 1) * WIDTH_S <= end)
        span = end - now + WIDTH_S
        if end <= (int(now / WIDTH_S) + SIGHT) * WIDTH_S:
            paces.append(due / span)
    if any(int(d / WIDTH_S) >= int(now / WIDTH_S) + SIGHT for d, _ in rows):
        paces.append(sum(work for _, work in rows) / (2 * SIGHT * WIDTH_S))
    return max(paces, default=0.0)


def test_pace_is_that_of_the_tightest_deadline():
    rng, demand, rows, now = random.Random(1), Demand(), [], 0.0
    for _ in range(400):
        now += rng.expovariate(8)
        if rows and rng.random() < 0.4:
            deadline, work = rows.pop(rng.randrange(len(rows)))
            demand.change(deadline, -work, now)
        else:
            rows.append(
                (now + rng.choice([0.3, 2.0, 9.0, 40.0, 4e4]) * rng.random(), rng.randrange(1, 5_000))
            )
            demand.change(*rows[-1], now)
        assert demand.total == sum(work for _, work in rows)
        assert demand.pace(now) == pytest.approx(pace_by_hand(rows, now))


def test_nothing_wanted_needs_no_pace():
    demand = Demand()
    demand.change(3.0, 100, 0.0)
    demand.change(3.0, -100, 2.0)
    assert (demand.pace(2.0), demand.total) == (0.0, 0)


def test_what_is_late_stays_in_the_books_until_it_is_done():
    demand = Demand()
    demand.change(1.0, 100, 0.0)
    assert demand.pace(50.0) == pytest.approx(100 / (2 * WIDTH_S))
    demand.change(1.0, -100, 60.0)
    assert demand.pace(60.0) == 0.0


def test_excess_is_what_does_not_fit_before_a_deadline():
    demand = Demand()
    demand.change(1.0, 1_000, 0.0)
    assert demand.excess_s([(1.0, 100)], pace=1_000, now=0.0) == 0.0
    late = demand.excess_s([(1.0, 1_000)], pace=1_000, now=0.0)
    assert late == pytest.approx(2_000 / 1_000 - (1.0 + 2 * WIDTH_S))


def test_deadlines_before_the_newcomers_are_not_its_fault():
    demand = Demand()
    demand.change(0.5, 10_000, 0.0)
    assert demand.excess_s([(20.0, 1)], pace=1_000, now=0.0) == 0.0
