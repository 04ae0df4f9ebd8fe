"""Who holds more than its share of a model's replicas, while others use it too."""

from collections import Counter

_ACTIVE_SECONDS = 10.0
_LOOK_SECONDS = 1.0


class Shares:
    """Requests in flight by tenant. A tenant's share is its weight over the weights of all tenants
    that sent something in the last ten seconds."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        self._total = 0
        self._seen: dict[str, tuple[float, float]] = {}
        """When each tenant last came, and its weight."""
        self._weights = 0.0
        self._looked = 0.0

    def came(self, tenant: str, weight: float, now: float) -> None:
        """It sent a request."""
        is_new = tenant not in self._seen
        self._seen[tenant] = now, weight
        if is_new or now - self._looked > _LOOK_SECONDS:
            self._look(now)

    def started(self, tenant: str) -> None:
        """A request of the tenant goes to a replica."""
        self._running[tenant] += 1
        self._total += 1

    def ended(self, tenant: str) -> None:
        """It has left it."""
        self._running[tenant] -= 1
        self._total -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def over(self, tenant: str, weight: float) -> bool:
        """Whether it holds more than its share, and there are others."""
        if len(self._seen) < 2:
            return False
        return self._running[tenant] * self._weights > weight * self._total

    def _look(self, now: float) -> None:
        self._looked = now
        self._seen = {
            tenant: seen
            for tenant, seen in self._seen.items()
            if now - seen[0] <= _ACTIVE_SECONDS or self._running[tenant]
        }
        self._weights = sum(weight for _, weight in self._seen.values())
