"""Virtual token counters."""

from __future__ import annotations

from polychoir.engine.shares import KEPT_ABSENT, Shares


def shares(**served):
    made = Shares()
    for tenant in served:
        made.enter(tenant)
    for tenant, tokens in served.items():
        made.serve(tenant, tokens)
    return made


def test_who_comes_back_saves_up_nothing():
    made = shares(a=500, b=300)
    made.enter("late")
    assert made.served("late") == 300
    assert made.gap == 200


def test_leaving_and_returning_clears_nothing():
    made = shares(a=500, b=300)
    made.leave("a")
    made.enter("a")
    assert made.served("a") == 500


def test_a_tenant_leaves_with_its_last_row():
    made = shares(a=500, b=300)
    made.enter("a")
    made.leave("a")
    assert made.gap == 200
    made.leave("a")
    assert made.gap == 0


def test_tenants_that_are_gone_are_forgotten_in_the_end():
    made = Shares()
    for number in range(3 * KEPT_ABSENT):
        made.enter(str(number))
        made.serve(str(number), 10)
        made.leave(str(number))
    assert len(made._absent) == KEPT_ABSENT and not made._served
