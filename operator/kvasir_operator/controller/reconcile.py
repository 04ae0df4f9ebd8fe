"""The reconcile loop: take a key from the queue, observe, plan, apply, write the status."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object, holds, is_terminating
from kvasir.resource import LLMDeployment, labels
from kvasir.resource.deployment_status import Reason
from kvasir.resource.rollout.rollout_status import RolloutPhase
from kvasir_operator.controller.apply import Applier
from kvasir_operator.controller.class_holder import ClassHolder
from kvasir_operator.controller.crd_check import without_fields
from kvasir_operator.controller.failures import (
    Failures,
    failed_access,
    failed_inside,
    failed_write,
    foreign_finalizers,
    still_there,
)
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.name_claimer import NameClaimer
from kvasir_operator.controller.observe import Observer
from kvasir_operator.controller.view import CHILDREN, View
from kvasir_operator.controller.work_queue import Key, WorkQueue
from kvasir_operator.kinds import EVENTS, JOBS, LLMDEPLOYMENTS, name_of_kind
from kvasir_operator.lora.lora_loader import LoraLoader
from kvasir_operator.objects import event_manifest, status_manifest
from kvasir_operator.plan import Plan, plan
from kvasir_operator.plan.canary.canary_events import event_between
from kvasir_operator.plan.canary.canary_workload import rollout_of
from kvasir_operator.plan.failure import Failure
from kvasir_operator.plan.inherited_values import CLASS_CHANGED, class_change, restarts_engines
from kvasir_operator.plan.observed import Observed, parse_resource
from kvasir_operator.plan.plan import with_failures
from kvasir_operator.settings import OperatorSettings
from kvasir_operator.spec_facts import names_served_by

_REFUSED_AGAIN = 30.0
"""Seconds after which a manifest refused for good is tried again: a quota may have grown."""

_DELETION_AGAIN = 10.0
"""Seconds after which an LLMDeployment that is being deleted is looked at again."""

_log = structlog.get_logger("kvasir_operator.controller.reconcile")


class _UnfinishedError(ApiError):
    """Something could not be written, which the status may tell already."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unfinished", message)


class Reconciler:
    """Worker on keys, one after the other; several may run beside each other."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        queue: WorkQueue[Key],
        observer: Observer,
        classes: ClassHolder,
        names: NameClaimer,
        adapters: LoraLoader,
        settings: OperatorSettings,
        metrics: Metrics,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._queue = queue
        self._observer = observer
        self._classes = classes
        self._names = names
        self._adapters = adapters
        self._settings = settings
        self._metrics = metrics
        self._applier = Applier(cluster, view, metrics)
        self._failures = Failures()

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
        except _UnfinishedError as error:
            return self._failed(key, str(error))
        except ApiError as error:
            await self._tell(key, failed_access(error))
            return self._failed(key, str(error))
        except Exception as error:
            # One resource that hits a fault must not end the work on all others
            _log.exception("failed", key="/".join(key))
            await self._tell(key, failed_inside(error))
            self._queue.failed(key)
            return "error"
        self._queue.done(key)
        if again is not None:
            self._queue.add_later(key, again)
        return "ok"

    def _failed(self, key: Key, error: str) -> str:
        delay = self._queue.failed(key)
        _log.warning("to be tried again", key="/".join(key), error=error, seconds=delay)
        return "retry"

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile once; return the seconds after which to look again, if any. Raises ApiError."""
        resource = self._view.resource(key)
        if resource is None:
            self._forget(key)
            return await self._names.release_gone(key)
        if is_terminating(resource):
            return await self._watch_deletion(key, resource) if self._view.holds(key) else None
        if not self._classes.is_ours(resource):
            await self._leave(key, resource)
            return None
        taken = await self._classes.take(resource)
        return await self._reconcile_taken(key, taken) if taken is not None else None

    async def _leave(self, key: Key, resource: Object) -> None:
        """Leave an LLMDeployment to the operator of another class, and say so if there is none."""
        self._metrics.gone(key)
        self._adapters.forget(key)
        await self._names.release(key, ())
        await self._classes.let_go(resource)
        problem = self._classes.unserved(resource)
        if problem is not None:
            failure = Failure("", problem, Reason.NOT_SERVED, False)
            observed = Observed(resource, datetime.now(UTC))
            await self._write_status(resource, with_failures(observed.status, [failure], observed))

    async def _reconcile_taken(self, key: Key, resource: Object) -> float | None:
        inherited, class_problem = self._classes.inherit(resource)
        deployment = parse_resource(resource, inherited)
        lost = await self._claim_names(resource, deployment)
        observed = await self._observer.observe(key, resource, deployment, lost, inherited)
        observed = replace(
            observed,
            unserved=self._classes.unserved(resource) or "",
            class_problem=class_problem,
            class_made_again=self._classes.is_made_again(),
        )
        made = plan(deployment, observed, self._settings)
        failures = await self._apply(made, observed)
        if isinstance(deployment, LLMDeployment):
            self._adapters.want(key, made.adapters)
        telling = self._failures.note(key, failures, time.monotonic())
        passing = [each for each in failures if each.passing]
        if len(telling) == len(failures):
            # What has not been told yet may be over in a moment: until then the status stays
            status = with_failures(made.status, telling, observed)
            known = without_fields(status, observed.crd_lacks)
            if await self._write_status(resource, known):
                await self._tell_canary(key, observed.status, known)
                await self._tell_class_change(key, made, observed, known)
        await self._release_names(key, deployment, observed)
        if passing:
            raise _UnfinishedError(passing[0].message)
        return _REFUSED_AGAIN if failures else made.requeue

    def _forget(self, key: Key) -> None:
        self._queue.forget(key)
        self._adapters.forget(key)
        self._failures.forget(key)
        self._metrics.gone(key)

    async def _release_names(
        self, key: Key, deployment: LLMDeployment | str, observed: Observed
    ) -> None:
        """Release what the spec has given up and no engine answers to; an invalid LLMDeployment
        keeps what it has."""
        if isinstance(deployment, LLMDeployment):
            serving = (names_served_by(pod) for pod in observed.pods)
            await self._names.release(key, set(deployment.claimed_names).union(*serving))

    async def _claim_names(
        self, resource: Object, deployment: LLMDeployment | str
    ) -> dict[str, str]:
        """Return the names that others have; an invalid LLMDeployment keeps what it has."""
        if isinstance(deployment, str):
            return {}
        return await self._names.claim(resource, deployment.claimed_names)

    async def _apply(self, made: Plan, observed: Observed) -> list[Failure]:
        failures = await self._applier.apply(made, observed.uid)
        if made.scale is not None and observed.deployment is not None:
            await self._applier.scale(observed.deployment, made.scale)
        if made.note is not None:
            await self._applier.annotate(made.note[0], JOBS, made.note[1])
        return failures

    async def _watch_deletion(self, key: Key, resource: Object) -> float | None:
        """Say of an LLMDeployment that is being deleted what holds it, or a part of it; return the
        seconds after which to look again. Raises ApiError."""
        children = (
            {**each, "kind": name_of_kind(kind)}
            for kind in CHILDREN
            for each in self._view.children(kind, key)
        )
        held = [
            each
            for each in ({**resource, "kind": "LLMDeployment"}, *children)
            if is_terminating(each) and foreign_finalizers(each)
        ]
        failures = [failed_write(each, still_there(each)) for each in held]
        observed = Observed(resource, datetime.now(UTC))
        await self._write_status(resource, with_failures(observed.status, failures, observed))
        return _DELETION_AGAIN

    async def _tell(self, key: Key, failure: Failure) -> None:
        """Write a failure that keeps coming back into the status, which else stays as it was."""
        resource = self._view.resource(key)
        telling = self._failures.note(key, [failure], time.monotonic())
        if resource is None or not telling:
            return
        observed = Observed(resource, datetime.now(UTC))
        try:
            await self._write_status(resource, with_failures(observed.status, telling, observed))
        except Exception as error:  # whatever it is, it must not end the work on all others either
            why = str(error) or repr(error)
            _log.warning("the status could not be written", key="/".join(key), error=why)

    async def _tell_canary(self, key: Key, before: Object, after: Object) -> None:
        """Make an event of a canary's turn. It is told once: one that cannot be made is lost."""
        state = rollout_of(after)
        found = event_between(rollout_of(before), state)
        if found is None or state is None:
            return
        if state.phase == RolloutPhase.ROLLED_BACK:
            self._metrics.rolled_back(state.reason)
        await self._tell_event(key, found.type, found.reason, found.message)

    async def _tell_class_change(
        self, key: Key, made: Plan, observed: Observed, after: Object
    ) -> None:
        """Make an event of an edit of the class that gives an LLMDeployment other values."""
        restarts = restarts_engines(made.manifests, observed)
        message = class_change(observed.status, after, restarts)
        if message and observed.deployment is not None:
            await self._tell_event(key, "Normal", CLASS_CHANGED, message)

    async def _tell_event(self, key: Key, kind: str, reason: str, message: str) -> None:
        resource = self._view.resource(key)
        if resource is None:
            return
        try:
            body = event_manifest(resource, kind, reason, message)
            await self._cluster.create(EVENTS, body, labels.MANAGER)
        except ApiError as error:
            _log.warning("an event cannot be made", key="/".join(key), error=str(error))
        else:
            self._metrics.count_write(EVENTS.plural, "create")

    async def _write_status(self, resource: Object, status: Object) -> bool:
        """Write the status; return whether it has changed."""
        metadata = resource["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        is_ready, replicas = holds({"status": status}, "Ready"), resource["spec"].get("replicas", 1)
        self._metrics.ready(key, is_ready, replicas)
        state = rollout_of(status)
        phase, weight = (state.phase, state.weight) if state is not None else ("", None)
        self._metrics.canary(key, phase, weight)
        if (resource.get("status") or {}) == status:
            return False
        body = status_manifest(resource, status, resourceVersion=metadata["resourceVersion"])
        try:
            answer = await self._cluster.apply(LLMDEPLOYMENTS, body, labels.MANAGER, "status")
        except ApiError as error:
            if error.status in (404, 409):
                return False  # it has changed or is gone, and the watch will say so
            raise
        self._metrics.count_write(LLMDEPLOYMENTS.plural, "status")
        self._view.wrote(LLMDEPLOYMENTS, resource, answer, time.monotonic())
        return True
