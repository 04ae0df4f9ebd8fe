"""Writer of the condition `kvasir.dev/leaving` of engine pods, by which routers and plans know what
will end.

Routers look at nothing but pods, so that they need no right to nodes. They do not wait for the
operator where a pod is being deleted, or says itself that it leaves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import structlog

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object, condition, is_terminating, name_of, namespace_of
from kvasir.resource import labels
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.view import View
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.departures.node_signals import Notice
from kvasir_operator.departures.pod_notice import annotations_for, change_of
from kvasir_operator.departures.signs import NodeSignals
from kvasir_operator.kinds import EVENTS
from kvasir_operator.objects import event_manifest
from kvasir_operator.pod_writer import PodWriter, owner_of, pod_condition

_TOGETHER_SECONDS = 0.1
_AGAIN_SECONDS = 30.0
"""Seconds after which all pods are looked at though nothing has changed."""
_WRITE_SECONDS = 5.0
_LONGEST_PAUSE = 10.0
_WRITERS = 8

_log = structlog.get_logger("kvasir_operator.departures")


class Departures:
    """The only writer of the condition."""

    def __init__(
        self, cluster: Cluster, view: View, signals: NodeSignals | None, metrics: Metrics
    ) -> None:
        """`signals` None = nodes are not watched."""
        self._cluster = cluster
        self._view = view
        self._signals = signals
        self._metrics = metrics
        self._news = asyncio.Event()
        self._writer = PodWriter(
            cluster,
            view,
            metrics,
            self._settle,
            longest_pause=_LONGEST_PAUSE,
            seconds=_WRITE_SECONDS,
            failed=partial(_log.warning, "a pod's notice is not written"),
        )

    def wake(self) -> None:
        """Note that a pod or a node has changed."""
        self._news.set()

    async def run(self) -> None:
        """Look whenever something has changed, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_WRITERS):
                tasks.create_task(self._writer.work())
            while True:
                self._news.clear()
                self._look()
                try:
                    await asyncio.wait_for(self._news.wait(), _AGAIN_SECONDS)
                except TimeoutError:
                    continue
                # News come in bursts
                await asyncio.sleep(_TOGETHER_SECONDS)

    def _look(self) -> None:
        leaving: Counter[str] = Counter()
        for pod in self._view.engine_pods():
            told = condition(pod, labels.LEAVING)
            if told.get("status") == "True" and not is_terminating(pod):
                leaving[str(told.get("reason"))] += 1
            if self._change(pod) is not None:
                self._writer.offer(pod)
        self._metrics.leaving_pods(leaving)

    def _change(self, pod: Object) -> Notice | None:
        node = self._view.node(str(pod["spec"].get("nodeName") or ""))
        return change_of(pod, node, self._signals)

    async def _settle(self, pod: Object) -> None:
        """Write the condition of one pod as it shall be now. Raises ApiError."""
        notice = self._change(pod)
        if notice is None:
            return
        metadata = {
            "annotations": annotations_for(pod, notice),
            # Neither of another pod of that name, nor after another operator's word
            "resourceVersion": pod["metadata"]["resourceVersion"],
        }
        told = pod_condition(pod, labels.LEAVING, notice.leaves, *notice)
        if await self._writer.merge(pod, {"conditions": [told]}, metadata, "notice"):
            where = {"namespace": namespace_of(pod), "pod": name_of(pod)}
            _log.info("notice", **where, reason=notice.reason)
            await self._tell(owner_of(pod), pod, notice)

    async def _tell(self, owner: Key, pod: Object, notice: Notice) -> None:
        """Make an event of it. It is told once: one that cannot be made is lost."""
        resource = self._view.resource(owner)
        if resource is None:
            return
        node = pod["spec"].get("nodeName") or "no node"
        kind, reason = ("Warning", "PodLeaves") if notice.leaves else ("Normal", "PodStays")
        message = f"Pod {name_of(pod)} on {node}: {notice.message}"
        try:
            body = event_manifest(resource, kind, reason, message)
            await self._cluster.create(EVENTS, body, labels.MANAGER)
        except ApiError as error:
            _log.warning("an event cannot be made", key="/".join(owner), error=str(error))
        else:
            self._metrics.count_write(EVENTS.plural, "create")
