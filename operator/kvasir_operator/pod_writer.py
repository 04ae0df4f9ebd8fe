"""Writes to engine pods, each pod by itself: one that fails or hangs delays no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object, condition, label, name_of, namespace_of
from kvasir.resource import labels
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.view import View
from kvasir_operator.controller.work_queue import Key, WorkQueue
from kvasir_operator.kinds import PODS
from kvasir_operator.objects import format_time


class UnfinishedError(Exception):
    """A pod is to be looked at again after a pause; the reason has been told already."""


class _PodKey(NamedTuple):
    owner: Key
    name: str


class PodWriter:
    """A queue of pods, and what is done with each: `settle` gets the pod as it is then."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        metrics: Metrics,
        settle: Callable[[Object], Awaitable[None]],
        *,
        longest_pause: float,
        seconds: float | None,
        failed: Callable[..., None],
    ) -> None:
        """`seconds` that one pod may take, None = as long as it takes; `failed` logs what went
        wrong, by the fields pod, error and seconds until the next try."""
        self._cluster = cluster
        self._view = view
        self._metrics = metrics
        self._settle = settle
        self._seconds = seconds
        self._failed = failed
        self._queue = WorkQueue[_PodKey](longest=longest_pause)

    def offer(self, pod: Object) -> None:
        """Queue a pod, unless it is in work or waits for its next time after a failure."""
        self._queue.offer(_PodKey(owner_of(pod), name_of(pod)))

    async def work(self) -> None:
        """Work on one pod after the other, for ever; several such tasks may run."""
        while True:
            key = await self._queue.next_key()
            try:
                async with asyncio.timeout(self._seconds):
                    pod = self._view.find(PODS, key.owner, key.name)
                    if pod is not None:
                        await self._settle(pod)
            except UnfinishedError:
                self._queue.failed(key)
            except Exception as error:  # whatever is wrong with one pod, the others go on
                delay = self._queue.failed(key)
                self._failed(pod=key.name, error=repr(error), seconds=delay)
            else:
                self._queue.done(key)

    async def merge(self, pod: Object, status: Object, metadata: dict[str, Any], verb: str) -> bool:
        """Change a pod's status and metadata; False = it is gone, or has changed since: the watch
        will say how. Raises ApiError."""
        where = namespace_of(pod), name_of(pod)
        try:
            answer = await self._cluster.merge_status(PODS, *where, status, metadata)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return False
        self._view.wrote(PODS, pod, answer, time.monotonic())
        self._metrics.count_write(PODS.plural, verb)
        return True


def owner_of(pod: Object) -> Key:
    """Return the LLMDeployment that a pod is of."""
    return Key(namespace_of(pod), label(pod, labels.DEPLOYMENT))


def pod_condition(pod: Object, kind: str, is_true: bool, reason: str, message: str) -> Object:
    """Return a condition of a pod as it is written now. Its lastTransitionTime is that of its
    status: another reason or message leaves it."""
    before, status = condition(pod, kind), str(is_true)
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or format_time(datetime.now(UTC)),
    }
