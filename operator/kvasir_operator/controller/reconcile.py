"""The reconcile loop: take a key from the queue, observe, plan, apply, write the status."""

from __future__ import annotations

import time

import structlog

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object, holds, is_terminating
from kvasir.resource import labels
from kvasir_operator.controller.apply import Applier
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.observe import Observer
from kvasir_operator.controller.view import View
from kvasir_operator.controller.work_queue import Key, WorkQueue
from kvasir_operator.kinds import JOBS, LLMDEPLOYMENTS
from kvasir_operator.plan import Plan, plan
from kvasir_operator.plan.observed import Observed, parse_resource
from kvasir_operator.plan.plan import with_failures
from kvasir_operator.settings import OperatorSettings

_REFUSED_AGAIN = 30.0
"""Seconds after which a manifest refused for good is tried again: a quota may have grown."""

_log = structlog.get_logger("kvasir_operator.controller.reconcile")


class Reconciler:
    """Worker on keys, one after the other; several may run beside each other."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        queue: WorkQueue,
        observer: Observer,
        settings: OperatorSettings,
        metrics: Metrics,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._queue = queue
        self._observer = observer
        self._settings = settings
        self._metrics = metrics
        self._applier = Applier(cluster, view, metrics)

    async def run(self) -> None:
        """Reconcile keys for ever; log a key's exception and retry it with backoff."""
        while True:
            key = await self._queue.next_key()
            started = time.monotonic()
            result = await self._try(key)
            self._metrics.reconciled(result, time.monotonic() - started, len(self._queue))

    async def _try(self, key: Key) -> str:
        try:
            again = await self.reconcile(key)
        except ApiError as error:
            delay = self._queue.failed(key)
            _log.warning("to be tried again", key="/".join(key), error=str(error), seconds=delay)
            return "retry"
        except Exception:
            # One resource that hits a fault must not end the work on all others
            delay = self._queue.failed(key)
            _log.exception("failed", key="/".join(key), seconds=delay)
            return "error"
        self._queue.done(key)
        if again is not None:
            self._queue.add_later(key, again)
        return "ok"

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile once; return the seconds after which to look again, if any. Raises ApiError."""
        resource = self._view.resource(key)
        if resource is None or is_terminating(resource):
            self._queue.forget(key)
            self._metrics.gone(key)
            return None
        deployment = parse_resource(resource)
        observed = await self._observer.observe(key, resource, deployment)
        made = plan(deployment, observed, self._settings)
        refused = await self._apply(made, observed)
        status = with_failures(made.status, refused, observed)
        await self._write_status(resource, status)
        wanted = resource["spec"].get("replicas", 1)
        self._metrics.ready(key, holds({"status": status}, "Ready"), wanted)
        return _REFUSED_AGAIN if refused else made.requeue

    async def _apply(self, made: Plan, observed: Observed) -> list[str]:
        refused = await self._applier.apply(made, observed.uid)
        if made.scale is not None and observed.deployment is not None:
            await self._applier.scale(observed.deployment, made.scale)
        if made.note is not None:
            await self._applier.annotate(made.note[0], JOBS, made.note[1])
        return refused

    async def _write_status(self, resource: Object, status: Object) -> None:
        if resource.get("status") == status:
            return
        metadata = resource["metadata"]
        body = {
            "apiVersion": LLMDEPLOYMENTS.api_version,
            "kind": "LLMDeployment",
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                # Another LLMDeployment of that name must not get this status
                "uid": metadata["uid"],
            },
            "status": status,
        }
        try:
            answer = await self._cluster.apply(LLMDEPLOYMENTS, body, labels.MANAGER, "status")
        except ApiError as error:
            if error.status in (404, 409):
                return  # it is gone, and the watch will say so
            raise
        self._metrics.count_write(LLMDEPLOYMENTS.plural, "status")
        self._view.wrote(LLMDEPLOYMENTS, resource, answer, time.monotonic())
