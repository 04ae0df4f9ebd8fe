"""Events about scaling, as `kubectl describe llmd` shows them."""

from __future__ import annotations

from datetime import UTC, datetime

import structlog

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object, name_of, namespace_of
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.kinds import EVENTS, LLMDEPLOYMENTS

MANAGER = "kvasir-autoscaler"
"""Field manager of what the autoscaler writes, and the component that its events name."""
_MAX_MESSAGE = 1024
"""Characters that API servers take."""

_log = structlog.get_logger("kvasir_operator.scaling")


class Events:
    """Writer of events; one that cannot be written is logged, and holds up nothing."""

    def __init__(self, cluster: Cluster, metrics: Metrics) -> None:
        self._cluster = cluster
        self._metrics = metrics

    async def tell(self, resource: Object, reason: str, message: str) -> None:
        """Write one event of type Normal about an LLMDeployment."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        namespace, name = namespace_of(resource), name_of(resource)
        about = {
            "apiVersion": LLMDEPLOYMENTS.api_version,
            "kind": "LLMDeployment",
            "namespace": namespace,
            "name": name,
            "uid": resource["metadata"]["uid"],
        }
        event = {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            "metadata": {"generateName": f"{name}.", "namespace": namespace},
            "involvedObject": about,
            "type": "Normal",
            "reason": reason,
            "message": message[:_MAX_MESSAGE],
            "source": {"component": MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._cluster.create(EVENTS, event, MANAGER)
        except ApiError as error:
            _log.warning("an event was not written", reason=reason, error=str(error))
            return
        self._metrics.count_write(EVENTS.plural, "create")
