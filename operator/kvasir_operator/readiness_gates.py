"""Open the readiness gates of engine pods that every router serves; close those of engines that
restarted. What protects a pod from node autoscalers while it loads changes in the same writes.

Routers do not wait for it: they take a pod as soon as its engine answers. Only Kubernetes waits,
with rollouts, evictions and Services, until a pod's loss or another's end would lose nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from kvasir.kube.client import Cluster
from kvasir.kube.objects import (
    Object,
    annotation,
    condition,
    container_run,
    holds,
    is_terminating,
    name_of,
    namespace_of,
)
from kvasir.resource import labels
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.view import View
from kvasir_operator.load_protection import lifted, restored
from kvasir_operator.pod_writer import PodWriter, pod_condition
from kvasir_operator.router_answers import RouterAnswers
from kvasir_operator.settings import OperatorSettings

_EVERY_SECONDS = 0.5
_EXTERNAL_SECONDS = 4.0
"""Seconds between two questions on servers of others, while nobody waits."""
_WRITE_SECONDS = 5.0
_LONGEST_PAUSE = 10.0
_WRITERS = 16

_log = structlog.get_logger("kvasir_operator.readiness_gates")


class Verdict(NamedTuple):
    """Wanted state of a pod's gate."""

    is_open: bool
    reason: str
    message: str


_SERVED = Verdict(True, "ServedByEveryRouter", "Every Ready router serves this engine.")
_NOT_ASKED = Verdict(True, "RoutersNotAsked", "The operator runs with --no-router-gate.")
_RESTARTED = Verdict(False, "EngineRestarted", "The engine began anew; routers must take it again.")


class ReadinessGates:
    """The only writer of the gate's condition.

    A write that fails or hangs is tried again by itself, while other pods' gates go on.
    """

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        settings: OperatorSettings,
        metrics: Metrics,
        routers: RouterAnswers,
    ) -> None:
        self._view = view
        self._asks_routers = settings.router_gate
        self._metrics = metrics
        self._routers = routers
        self.is_settled: Callable[[Object], bool] = lambda pod: True
        """Tell if an engine was asked for all adapters that it shall hold: its gate stays closed
        until then, as those it replaces hold them."""
        self._news = asyncio.Event()
        self._writer = PodWriter(
            cluster,
            view,
            metrics,
            self._settle,
            longest_pause=_LONGEST_PAUSE,
            seconds=_WRITE_SECONDS,
            failed=partial(_log.warning, "a gate is not written"),
        )

    def wake(self) -> None:
        """Note that a pod has changed."""
        self._news.set()

    async def run(self) -> None:
        """Look for ever: whenever a pod has changed or a router answers, and twice a second while
        a pod waits or a router is silent: nothing else would tell that it answers again. Routers
        are asked more seldom while there are only servers of others to ask for."""
        try:
            async with self._routers.client() as client, asyncio.TaskGroup() as tasks:
                for _ in range(_WRITERS):
                    tasks.create_task(self._writer.work())
                while True:
                    self._news.clear()
                    asks = self._look() or bool(self._routers.silent())
                    seconds = _EVERY_SECONDS if asks else _EXTERNAL_SECONDS
                    if asks:
                        self._routers.ask(client, self.wake)
                    elif self._asks_routers and self._view.has_external():
                        self._routers.ask(client, lambda: None)
                    self._metrics.silent_routers(len(self._routers.silent()))
                    try:
                        await asyncio.wait_for(self._news.wait(), seconds)
                    except TimeoutError:
                        continue
                    # News come in bursts
                    await asyncio.sleep(_EVERY_SECONDS / 5)
        finally:
            await self._routers.close()

    def _look(self) -> bool:
        """Queue the pods whose gate shall change; tell if a pod waits for routers."""
        waits = False
        for pod in self._view.engine_pods():
            if is_terminating(pod):
                continue
            waits = waits or (self._asks_routers and awaits_confirmation(pod))
            verdict = self._verdict(pod)
            if verdict is not None or protection_change(pod, verdict):
                self._writer.offer(pod)
        return waits

    def _verdict(self, pod: Object) -> Verdict | None:
        if not self._asks_routers:
            waits = awaits_confirmation(pod) and self.is_settled(pod)
            return _NOT_ASKED if waits else None
        return verdict_on(pod, self._routers.confirmed(run_of(pod)) and self.is_settled(pod))

    async def _settle(self, pod: Object) -> None:
        """Write the gate of one pod as it shall be now, if that changes it. Raises ApiError."""
        if is_terminating(pod):
            return
        verdict = self._verdict(pod)
        annotations: dict[str, str | None] = dict(protection_change(pod, verdict))
        if verdict is None and not annotations:
            return
        status: Object = {}
        if verdict is not None:
            status["conditions"] = [pod_condition(pod, labels.ROUTED, *verdict)]
            annotations[labels.ROUTED_RUN] = run_of(pod)
        metadata = {
            "annotations": annotations,
            # Of another run, or after another operator's word, it must not come
            "resourceVersion": pod["metadata"]["resourceVersion"],
        }
        if await self._writer.merge(pod, status, metadata, "gate" if verdict else "protection"):
            told = str(verdict.is_open) if verdict else "unchanged"
            _log.info("gate", namespace=namespace_of(pod), pod=name_of(pod), status=told)


def protection_change(pod: Object, verdict: Verdict | None) -> Mapping[str, str | None]:
    """Return the annotations to change for node autoscalers, together with the gate: a pod is
    protected until it serves, and again when its engine begins anew."""
    if verdict is not None:
        return lifted(pod) if verdict.is_open else restored(pod)
    gates = pod["spec"].get("readinessGates") or ()
    gated = any(gate.get("conditionType") == labels.ROUTED for gate in gates)
    serves = _is_open(pod) if gated else holds(pod, "ContainersReady")
    return lifted(pod) if serves else {}


def run_of(pod: Object) -> str:
    """Name this run of the pod's engine as routers do; "" before its container has a status."""
    return container_run(pod, labels.ENGINE_CONTAINER)


def awaits_confirmation(pod: Object) -> bool:
    """Tell if the engine is up and its gate is not open for this run of it."""
    gates = pod["spec"].get("readinessGates") or ()
    gated = any(gate.get("conditionType") == labels.ROUTED for gate in gates)
    return gated and holds(pod, "ContainersReady") and not _is_open(pod)


def verdict_on(pod: Object, confirmed: bool) -> Verdict | None:
    """Return what the gate shall be, if the routers have `confirmed` this run of the engine; None =
    as it is.

    A gate that is open stays so whatever routers say later, but for a restart of the engine: a
    router that is new or slow is no reason to take pods out of rotation everywhere.
    """
    run = run_of(pod)
    if not run or _is_open(pod):
        return None
    if confirmed and awaits_confirmation(pod):
        return _SERVED
    about = annotation(pod, labels.ROUTED_RUN)
    if holds(pod, labels.ROUTED) and about and about != run:
        return _RESTARTED
    return None


def _is_open(pod: Object) -> bool:
    """Tell if the gate is open for this run of the engine."""
    is_about = annotation(pod, labels.ROUTED_RUN) == run_of(pod)
    return condition(pod, labels.ROUTED).get("status") == "True" and is_about
