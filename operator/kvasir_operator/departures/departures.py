"""Writer of the condition `kvasir.dev/leaving` of engine pods, by which routers and plans know what
will end.

Routers look at nothing but pods, so that they need no right to nodes. They do not wait for the
operator where a pod is being deleted, or says itself that it leaves.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object, condition, is_terminating, label, name_of, namespace_of
from kvasir.resource import labels
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.view import View
from kvasir_operator.controller.work_queue import Key, WorkQueue
from kvasir_operator.departures.node_signals import Notice
from kvasir_operator.departures.pod_notice import annotations_for, change_of
from kvasir_operator.departures.signs import NodeSignals
from kvasir_operator.kinds import EVENTS, PODS
from kvasir_operator.objects import event_manifest, format_time

_TOGETHER_SECONDS = 0.1
_AGAIN_SECONDS = 30.0
"""Seconds after which all pods are looked at though nothing has changed."""
_WRITE_SECONDS = 5.0
_LONGEST_PAUSE = 10.0
_WRITERS = 8

_log = structlog.get_logger("kvasir_operator.departures")


class _PodKey(NamedTuple):
    owner: Key
    name: str


class Departures:
    """The only writer of the condition. Each pod is a key of a queue: one that cannot be written
    delays no other."""

    def __init__(
        self, cluster: Cluster, view: View, signals: NodeSignals, metrics: Metrics
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._signals = signals
        self._metrics = metrics
        self._news = asyncio.Event()
        self._queue = WorkQueue[_PodKey](longest=_LONGEST_PAUSE)

    def wake(self) -> None:
        """Note that a pod or a node has changed."""
        self._news.set()

    async def run(self) -> None:
        """Look whenever something has changed, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_WRITERS):
                tasks.create_task(self._write_all())
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
                owner = Key(namespace_of(pod), label(pod, labels.DEPLOYMENT))
                self._queue.offer(_PodKey(owner, name_of(pod)))
        self._metrics.leaving_pods(leaving)

    def _change(self, pod: Object) -> Notice | None:
        node = self._view.node(str(pod["spec"].get("nodeName") or ""))
        return change_of(pod, node, self._signals)

    async def _write_all(self) -> None:
        while True:
            key = await self._queue.next_key()
            try:
                async with asyncio.timeout(_WRITE_SECONDS):
                    await self._settle(key)
            except Exception as error:  # whatever is wrong with one pod, the others go on
                delay = self._queue.failed(key)
                why = repr(error)
                _log.warning("a pod's notice is not written", pod=key.name, error=why, again=delay)
            else:
                self._queue.done(key)

    async def _settle(self, key: _PodKey) -> None:
        """Write the condition of one pod as it shall be now. Raises ApiError."""
        pod = self._view.find(PODS, key.owner, key.name)
        notice = self._change(pod) if pod is not None else None
        if pod is None or notice is None:
            return
        metadata = {
            "annotations": annotations_for(pod, notice),
            # Neither of another pod of that name, nor after another operator's word
            "resourceVersion": pod["metadata"]["resourceVersion"],
        }
        status = {"conditions": [_condition(notice)]}
        where = namespace_of(pod), name_of(pod)
        try:
            answer = await self._cluster.merge_status(PODS, *where, status, metadata)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return  # the watch will say what has changed
        self._view.wrote(PODS, pod, answer, time.monotonic())
        self._metrics.count_write(PODS.plural, "notice")
        _log.info("notice", namespace=where[0], pod=where[1], reason=notice.reason)
        await self._tell(key.owner, pod, notice)

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


def _condition(notice: Notice) -> Object:
    return {
        "type": labels.LEAVING,
        "status": str(notice.leaves),
        "reason": notice.reason,
        "message": notice.message,
        "lastTransitionTime": format_time(datetime.now(UTC)),
    }
