"""Whose turn it is among tenants: tokens served to each, as virtual counters.

A tenant that comes back after a pause starts no lower than the least served of those present, so nobody
saves up service; one that only passes through keeps its counter, so leaving and returning gains nothing.
Source: virtual token counter (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024).
"""

from __future__ import annotations

KEPT_ABSENT = 1_024
"""Counters of tenants without rows, so that a short absence does not clear them."""


class Shares:
    """Tokens served, by tenant. In the order of entry, so nothing depends on a hash."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._absent: dict[str, int] = {}

    def enter(self, tenant: str) -> None:
        """One more row of this tenant."""
        if tenant not in self._rows:
            least = min(self._served.values(), default=0)
            self._served[tenant] = max(least, self._absent.pop(tenant, 0))
        self._rows[tenant] = self._rows.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """One row of this tenant fewer."""
        self._rows[tenant] -= 1
        if self._rows[tenant]:
            return
        del self._rows[tenant]
        self._absent[tenant] = self._served.pop(tenant)
        if len(self._absent) > KEPT_ABSENT:
            del self._absent[next(iter(self._absent))]

    def serve(self, tenant: str, tokens: int) -> None:
        self._served[tenant] += tokens

    def served(self, tenant: str) -> int:
        return self._served[tenant]

    @property
    def gap(self) -> int:
        """Tokens between the most and the least served of the tenants present."""
        counters = self._served.values()
        return max(counters, default=0) - min(counters, default=0)
