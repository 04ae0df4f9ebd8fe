"""Tenants that have more than their share of a model's replicas, and had so lately, while others
use it too."""

from math import exp

_ACTIVE_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_MEMORY_SECONDS = 30.0
_LARGEST = 1e100


class TenantShares:
    """Service by tenant, that of `t` seconds ago counting exp(-t / 30). A tenant's share is its
    weight over the weights of all tenants that sent something in the last ten seconds.

    Only proportions matter, so instead of letting the past fade, the present counts ever more
    (forward decay: Cormode et al., 2009), and all is scaled down when numbers become large.
    """

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._total = 0.0
        self._running: dict[str, int] = {}
        self._since = 0.0
        self._seen: dict[str, tuple[float, float]] = {}
        """Time at which each tenant last came, and its weight."""
        self._weights = 0.0
        self._looked = 0.0

    @property
    def contended(self) -> bool:
        """True if more than one tenant came lately."""
        return len(self._seen) > 1

    def came(self, tenant: str, weight: float, now: float) -> None:
        """Note that the tenant sent a request."""
        seen = self._seen
        known = len(seen)
        seen[tenant] = now, weight
        if len(seen) > known or now - self._looked > _LOOK_SECONDS:
            self._look(now)

    def started(self, tenant: str, tokens: float, now: float) -> None:
        """A request that needs so much service goes to a replica."""
        running, served = self._running, self._served
        running[tenant] = running.get(tenant, 0) + 1
        counted = tokens * exp((now - self._since) / _MEMORY_SECONDS)
        served[tenant] = served.get(tenant, 0.0) + counted
        self._total += counted

    def ended(self, tenant: str) -> None:
        """Note that a request of the tenant has left the model."""
        self._running[tenant] -= 1

    def take_back(self, tenant: str, tokens: float, now: float) -> None:
        """Take back a start: there was no replica for it after all."""
        self.started(tenant, -tokens, now)
        self._running[tenant] -= 2

    def over(self, tenant: str, weight: float, capacity: int) -> bool:
        """Return whether the tenant exceeds its share while others are active."""
        if not self.contended:
            return False
        if self._running.get(tenant, 0) * self._weights <= weight * capacity:
            return False
        return self._served.get(tenant, 0.0) * self._weights > weight * self._total

    def _look(self, now: float) -> None:
        self._looked = now
        self._seen = {
            tenant: seen for tenant, seen in self._seen.items() if now - seen[0] <= _ACTIVE_SECONDS
        }
        self._running = {tenant: count for tenant, count in self._running.items() if count}
        self._weights = sum(weight for _, weight in self._seen.values())
        factor = exp(min((now - self._since) / _MEMORY_SECONDS, 600.0))
        if factor > _LARGEST:
            # What is left of those that come no more is nothing.
            self._served = {tenant: self._served.get(tenant, 0.0) / factor for tenant in self._seen}
            self._total = sum(self._served.values())
            self._since = now
