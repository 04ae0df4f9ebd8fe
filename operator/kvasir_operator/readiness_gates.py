"""Open the readiness gates of engine pods that every router serves; close those of engines that
restarted.

Routers do not wait for it: they take a pod as soon as its engine answers. Only Kubernetes waits,
with rollouts, evictions and Services, until a pod's loss or another's end would lose nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from datetime import UTC, datetime

import httpx
import structlog

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import (
    Object,
    condition,
    container_status,
    holds,
    is_terminating,
    name_of,
    namespace_of,
)
from kvasir.resource import labels
from kvasir.wire.fleet_secret import FLEET_SECRET_HEADER
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.view import View
from kvasir_operator.kinds import PODS
from kvasir_operator.objects import format_time
from kvasir_operator.pod_http import NoAnswerError, ask
from kvasir_operator.settings import OperatorSettings

_ASK_SECONDS = 1.0
_EVERY_SECONDS = 0.5
_MAX_BYTES = 4 << 20
_SERVED, _RESTARTED = "ServedByEveryRouter", "EngineRestarted"

_log = structlog.get_logger("kvasir_operator.readiness_gates")


class ReadinessGates:
    """The only writer of the gate's condition."""

    def __init__(
        self, cluster: Cluster, view: View, settings: OperatorSettings, metrics: Metrics
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._settings = settings
        self._metrics = metrics
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Note that a pod has changed."""
        self._news.set()

    async def run(self) -> None:
        """Look for ever: whenever a pod has changed, and twice a second while one waits."""
        headers = {FLEET_SECRET_HEADER: self._settings.fleet_secret}
        async with httpx.AsyncClient(
            timeout=_ASK_SECONDS, trust_env=False, headers=headers
        ) as client:
            while True:
                self._news.clear()
                try:
                    waits = await self._look(client)
                except ApiError as error:
                    _log.warning("a gate could not be written", error=str(error))
                    waits = True
                try:
                    await asyncio.wait_for(self._news.wait(), _EVERY_SECONDS if waits else None)
                except TimeoutError:
                    continue
                # News come in bursts
                await asyncio.sleep(_EVERY_SECONDS / 5)

    async def _look(self, client: httpx.AsyncClient) -> bool:
        """Set all gates once; tell if a pod waits for routers."""
        pods = [pod for pod in self._view.engine_pods() if not is_terminating(pod)]
        waiting = [pod for pod in pods if awaits_confirmation(pod)]
        served = await self._served_by_all(client) if waiting else None
        for pod in pods:
            verdict = verdict_on(pod, served)
            if verdict is not None:
                await self._write(pod, *verdict)
        return bool(waiting)

    async def _served_by_all(self, client: httpx.AsyncClient) -> set[str] | None:
        """Return the runs that all Ready routers serve; None if none is, or one does not answer."""
        routers = self._view.ready_routers(self._settings.router_namespace)
        if not routers:
            return None
        answers = await asyncio.gather(*(self._ask(client, router) for router in routers))
        known = [answer for answer in answers if answer is not None]
        return set.intersection(*known) if len(known) == len(routers) else None

    async def _ask(self, client: httpx.AsyncClient, router: Object) -> set[str] | None:
        port = self._settings.router_admin_port
        try:
            status, body = await ask(client, router, port, "/serving", _MAX_BYTES)
            if status != httpx.codes.OK:
                return None
            return {str(each) for each in json.loads(body)["serving"]}
        except (NoAnswerError, ValueError, KeyError, TypeError):
            return None

    async def _write(self, pod: Object, status: str, reason: str, run: str) -> None:
        written = {
            "type": labels.ROUTED,
            "status": status,
            "reason": reason,
            "message": run,
            "lastTransitionTime": format_time(datetime.now(UTC)),
        }
        try:
            await self._cluster.merge_status(
                PODS, namespace_of(pod), name_of(pod), {"conditions": [written]}
            )
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return
        self._metrics.count_write(PODS.plural, "gate")
        _log.info("gate", namespace=namespace_of(pod), pod=name_of(pod), status=status)


def run_of(pod: Object) -> str:
    """Name this run of the pod's engine as routers do; "" before its container has a status."""
    status = container_status(pod, labels.ENGINE_CONTAINER)
    if not status:
        return ""
    return f"{pod['metadata']['uid']}/{status.get('restartCount', 0)}"


def awaits_confirmation(pod: Object) -> bool:
    """Tell if the engine is up and its gate is not open for this run of it."""
    gates = pod["spec"].get("readinessGates") or ()
    gated = any(gate.get("conditionType") == labels.ROUTED for gate in gates)
    return gated and holds(pod, "ContainersReady") and not _is_open(pod)


def verdict_on(pod: Object, served: Iterable[str] | None) -> tuple[str, str, str] | None:
    """Return the status, reason and message that the gate shall have; None = as it is.

    A gate that is open stays so whatever routers say later, but for a restart of the engine: a
    router that is new or slow is no reason to take pods out of rotation everywhere.
    """
    run = run_of(pod)
    if not run or _is_open(pod):
        return None
    if awaits_confirmation(pod) and served is not None and run in served:
        return "True", _SERVED, run
    if holds(pod, labels.ROUTED):
        return "False", _RESTARTED, run
    return None


def _is_open(pod: Object) -> bool:
    """Tell if the gate is open for this run of the engine."""
    gate = condition(pod, labels.ROUTED)
    return gate.get("status") == "True" and gate.get("message") == run_of(pod)
