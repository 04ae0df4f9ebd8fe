"""Statistics that the admin port shows: those of this process, or of all that serve."""

from kvasir_router.proxy.gateway import Gateway
from kvasir_router.scaling.signals import Latencies
from kvasir_router.telemetry.metric_families import Family, families_of


class Statistics:
    """Read-only counts and latencies; here of a router of one process."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def gather(self) -> None:
        """Have the present numbers."""

    def families(self) -> list[Family]:
        """Return all metrics."""
        return families_of(self._gateway.metrics.collect())

    def latencies(self, model: str) -> Latencies:
        """Return a model's latencies of the last minute."""
        return self._gateway.signals.model(model)
