"""Engines that ended for a fault of their GPU: an event for each, and a count.

The engine's own count ends with its process, mostly before anybody has read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import structlog

from kvasir.engine_values import GPU_FAULT_STATUS
from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object, container_statuses, label, name_of, namespace_of, parse_time
from kvasir.resource import labels
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.view import View
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.kinds import EVENTS
from kvasir_operator.objects import event_manifest, short_hash

_FRESH: Final = timedelta(minutes=30)
"""Age up to which an end is told: shorter than API servers keep events (an hour), by which an
operator that starts again knows what has been told."""
_AGAIN_SECONDS = 30.0
_WRITE_SECONDS = 5.0
_MARK: Final = "ended for a fault of its GPU: "
"""Before the reason, in the last line of the engine's log."""
_MAX_REASON = 300

_log = structlog.get_logger("kvasir_operator.departures")


class GpuFaultEnd(NamedTuple):
    """End of one run of an engine."""

    key: Key
    pod: str
    uid: str
    node: str
    at: str
    """Time of the end, as the kubelet says it."""
    reason: str
    """Reason as the engine said it; "" = it is not known."""

    @property
    def message(self) -> str:
        """Return what the event says."""
        reason = f": {self.reason}" if self.reason else ""
        return (
            f"Pod {self.pod} on {self.node} ended for a fault of its GPU{reason}. It starts again"
            " on the same GPU; if that fails, drain the node or delete the pod."
        )


def gpu_fault_of(pod: Object, now: datetime) -> GpuFaultEnd | None:
    """Return the last end of the pod's engine, if it was for a fault of its GPU and not long ago.
    Other types of engines may mean something else by the same exit status."""
    if label(pod, labels.ENGINE_TYPE):
        return None
    for status in container_statuses(pod):
        if status.get("name") != labels.ENGINE_CONTAINER:
            continue
        for state in (status.get("state"), status.get("lastState")):
            ended = (state or {}).get("terminated") or {}
            at = str(ended.get("finishedAt") or "")
            if ended.get("exitCode") == GPU_FAULT_STATUS and at and now - parse_time(at) < _FRESH:
                return GpuFaultEnd(
                    Key(namespace_of(pod), label(pod, labels.DEPLOYMENT)),
                    name_of(pod),
                    pod["metadata"]["uid"],
                    pod["spec"].get("nodeName") or "no node",
                    at,
                    _reason(str(ended.get("message") or "")),
                )
    return None


class GpuFaultEvents:
    """Tell each end once, also over restarts of the operator: the event's name is of the end."""

    def __init__(self, cluster: Cluster, view: View, metrics: Metrics) -> None:
        self._cluster = cluster
        self._view = view
        self._metrics = metrics
        self._news = asyncio.Event()
        self._told: set[GpuFaultEnd] = set()

    def wake(self) -> None:
        """Note that a pod has changed."""
        self._news.set()

    async def run(self) -> None:
        """Look whenever something has changed, for ever."""
        while True:
            self._news.clear()
            now = datetime.now(UTC)
            found = {end for pod in self._view.engine_pods() if (end := gpu_fault_of(pod, now))}
            self._told &= found
            await self._tell(sorted(found - self._told))
            try:
                await asyncio.wait_for(self._news.wait(), _AGAIN_SECONDS)
            except TimeoutError:
                continue

    async def _tell(self, ends: Iterable[GpuFaultEnd]) -> None:
        for end in ends:
            try:
                async with asyncio.timeout(_WRITE_SECONDS):
                    await self._make_event(end)
            except (ApiError, TimeoutError) as error:
                _log.warning("an event cannot be made", pod=end.pod, error=repr(error))
            else:
                self._told.add(end)

    async def _make_event(self, end: GpuFaultEnd) -> None:
        resource = self._view.resource(end.key)
        if resource is None:
            return
        body = event_manifest(resource, "Warning", "GpuFault", end.message)
        del body["metadata"]["generateName"]
        body["metadata"]["name"] = f"{end.key.name[:40]}.{short_hash([end.uid, end.at])}"
        try:
            await self._cluster.create(EVENTS, body, labels.MANAGER)
        except ApiError as error:
            if error.status != 409:
                raise
            return  # told by the operator before this one
        self._metrics.count_write(EVENTS.plural, "create")
        self._metrics.gpu_fault(end.key)
        _log.warning("GPU fault", pod=end.pod, node=end.node, reason=end.reason)


def _reason(message: str) -> str:
    """Return what the engine's last lines say of the fault."""
    _, _, told = " ".join(message.split()).rpartition(_MARK)
    return told[:_MAX_REASON].rstrip(".") if _MARK in message else ""
