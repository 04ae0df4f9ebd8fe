"""Fairness between tenants that wait: the virtual token counter.

Sheng et al., Fairness in Serving Large Language Models, OSDI 2024 (arXiv:2401.00588): each tenant
has a counter of the service it has got, in weighted tokens divided by its share; the waiting tenant
with the smallest is served. A tenant that comes back from idle is lifted to the smallest counter
among those that wait (or to that of the tenant that left the queue last, when nobody waits), so
that idling earns no credit. The service of a request is known only at its end: at its start it is
charged by prediction (the tenant's recent answers), and corrected then.
"""

from collections.abc import Collection, Reversible

OUTPUT_WEIGHT = 2.0
"""Service of an output token, in prompt tokens; the paper's."""

_PREDICTED_FIRST = 128.0
_RECENT = 0.2
"""Weight of the latest answer in the prediction of the next."""


class ServiceCounters:
    """Counters of one model's tenants."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._output: dict[str, float] = {}
        self._last_out = 0.0

    def served(self, tenant: str) -> float:
        """Weighted service so far, in tokens over the tenant's weight."""
        return self._served.get(tenant, 0.0)

    def predict(self, tenant: str, prompt_tokens: int) -> float:
        """Service that a request will need, in tokens."""
        return prompt_tokens + OUTPUT_WEIGHT * self._output.get(tenant, _PREDICTED_FIRST)

    def charge(self, tenant: str, tokens: float, weight: float) -> None:
        """Service is given; negative = taken back."""
        self._served[tenant] = self._served.get(tenant, 0.0) + tokens / weight

    def learn(self, tenant: str, output_tokens: int) -> None:
        """An answer had so many tokens."""
        before = self._output.get(tenant, _PREDICTED_FIRST)
        self._output[tenant] = before + _RECENT * (output_tokens - before)

    def came(self, tenant: str, waiting: Collection[str]) -> None:
        """Note that a tenant's first request begins to wait; `waiting` are the other tenants that
        do."""
        least = min(map(self.served, waiting)) if waiting else self._last_out
        self._served[tenant] = max(self.served(tenant), least)

    def left(self, tenant: str) -> None:
        """Note that a tenant's last request waits no more."""
        self._last_out = self.served(tenant)

    def least(self, waiting: Reversible[str]) -> str:
        """Return the tenant to serve; of equals the one that came last, which had the least
        lately."""
        return min(reversed(waiting), key=self.served)
