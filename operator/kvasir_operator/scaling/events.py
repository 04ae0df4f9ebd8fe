"""Events about scaling, as `kubectl describe llmd` shows them."""

from __future__ import annotations

import structlog

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.kinds import EVENTS
from kvasir_operator.objects import event_manifest

MANAGER = "kvasir-autoscaler"
"""Field manager of what the autoscaler writes, and the component that its events name."""

_log = structlog.get_logger("kvasir_operator.scaling")


class Events:
    """Writer of events; one that cannot be written is logged, and holds up nothing."""

    def __init__(self, cluster: Cluster, metrics: Metrics) -> None:
        self._cluster = cluster
        self._metrics = metrics

    async def tell(self, resource: Object, reason: str, message: str) -> None:
        """Write one event of type Normal about an LLMDeployment."""
        event = event_manifest(resource, "Normal", reason, message, MANAGER)
        try:
            await self._cluster.create(EVENTS, event, MANAGER)
        except ApiError as error:
            _log.warning("an event was not written", reason=reason, error=str(error))
            return
        self._metrics.count_write(EVENTS.plural, "create")
