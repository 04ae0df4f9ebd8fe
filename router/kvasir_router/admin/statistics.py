"""Statistics that the admin port shows: those of this process, or of all that serve."""

import asyncio
from typing import Any

from kvasir.wire.canary_samples import CanarySamples
from kvasir_router.fleet.model import Model
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.scaling.signals import SAMPLE_SECONDS, Latencies
from kvasir_router.telemetry.metric_families import Family, families_of


class Statistics:
    """Read-only counts and latencies; here of a router of one process."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def gather(self) -> None:
        """Have the present numbers."""

    async def sample(self) -> None:
        """Take the signals for scaling, forever."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            for model in self._gateway.fleet.models.values():
                self._gateway.signals.sample(model, *self.waiting(model))

    def families(self) -> list[Family]:
        """Return all metrics."""
        return families_of(self._gateway.metrics.collect())

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return self._gateway.metrics.text()

    def latencies(self, model: str) -> Latencies:
        """Return a model's latencies of the last minute."""
        return self._gateway.signals.model(model)

    def waiting(self, model: Model) -> tuple[int, int]:
        """Return how many requests wait for the model, and their estimated prompt tokens."""
        queue = self._gateway.queue
        return queue.wanting(model), queue.waiting_tokens(model)

    def scaling(self, model: Model) -> dict[str, Any]:
        """Return the signals of how many replicas the model needs."""
        waiting = self.waiting(model)
        return self._gateway.signals.report(model, *waiting, self.latencies(model.name))

    def all_scaling(self) -> dict[str, dict[str, Any]]:
        """Return the signals of every model, by name, also of those without a replica."""
        models = list(self._gateway.fleet.models.values())
        return {model.name: self.scaling(model) for model in models}

    def canary(self, model: Model) -> CanarySamples | None:
        """Return the samples of a model's canary and of its stable revision; None without one."""
        return None if model.split is None else model.split.samples()

    def all_canaries(self) -> dict[str, dict[str, Any]]:
        """Return the samples of every model that has a canary, by name."""
        models = self._gateway.fleet.models.values()
        found = ((model.name, self.canary(model)) for model in models)
        return {name: samples.report() for name, samples in found if samples is not None}
