"""Make the cluster match a plan, with as few writes as that takes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import structlog

from kvasir.kube import ApiError, Kind
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object, is_terminating, label, name_of, namespace_of
from kvasir.resource import labels
from kvasir_operator.controller.drift import matches_live, stamped
from kvasir_operator.controller.failures import (
    described,
    failed_write,
    is_about_the_server,
    still_there,
)
from kvasir_operator.controller.left_out import LeftOut
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.view import View
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.kinds import DEPLOYMENTS, kind_of
from kvasir_operator.plan import Plan
from kvasir_operator.plan.failure import Failure

_CREATED_ONCE = ("Job",)
"""Kinds whose objects cannot be changed once they are made."""
_WHOLE = ("NetworkPolicy", "PodDisruptionBudget")
"""Kinds whose specs are the operator's alone: what somebody adds there lets others in, or
contradicts what is ours, as minAvailable does maxUnavailable. An apply would leave it."""

_Write = Callable[[Object | None], Awaitable[Object | None]]
"""Write to an object, given as it is now; returns the answer, or None if nothing is to be done."""

_log = structlog.get_logger("kvasir_operator.controller.apply")


class Applier:
    """Writer of manifests by server-side apply, as one field manager."""

    def __init__(self, cluster: Cluster, view: View, metrics: Metrics) -> None:
        self._cluster = cluster
        self._view = view
        self._metrics = metrics
        self._left_out = LeftOut()

    async def apply(self, plan: Plan, uid: str) -> list[Failure]:
        """Write everything but the status; return what failed, each object for itself. Raises
        ApiError when the API server as a whole does not answer."""
        failures: list[Failure] = []
        steps = [(self._ensure, each) for each in plan.manifests]
        for step, manifest in (*steps, *((self._remove, each) for each in plan.deletions)):
            try:
                await step(manifest, uid)
            except ApiError as error:
                if is_about_the_server(error):
                    raise
                failures.append(failed_write(manifest, error))
        return failures

    async def scale(self, deployment: Object, replicas: int) -> None:
        """Set only the replicas of a Deployment that must not be changed otherwise."""

        async def write(live: Object | None) -> Object | None:
            if live is None or live["spec"].get("replicas") == replicas:
                return None
            body = {"metadata": _seen(live), "spec": {"replicas": replicas}}
            return await self._cluster.merge(DEPLOYMENTS, namespace_of(live), name_of(live), body)

        await self._write(DEPLOYMENTS, deployment, deployment, write, "scale")

    async def annotate(self, it: Object, kind: Kind, annotations: dict[str, str]) -> None:
        """Add annotations to an object."""
        body = {"metadata": {"uid": it["metadata"]["uid"], "annotations": annotations}}
        answer = await self._cluster.merge(kind, namespace_of(it), name_of(it), body)
        self._wrote(kind, it, answer, "annotate")

    async def _ensure(self, manifest: Object, uid: str) -> None:
        kind = kind_of(manifest)
        live = await self._live(kind, manifest)
        # What several apply has no stamp, which each would write anew, and a manager for each: an
        # apply takes away what the same manager applied before and does not any more.
        shared = not label(manifest, labels.DEPLOYMENT)
        wanted = manifest if shared else stamped(manifest)
        manager = f"{labels.MANAGER}/{uid}" if shared else labels.MANAGER

        async def replace(now: Object | None) -> Object | None:
            if now is None or not _has_foreign_parts(manifest, now):
                return None
            return await self._cluster.replace_spec(kind, now, manifest["spec"], labels.MANAGER)

        async def apply(now: Object | None) -> Object | None:
            if now is None:
                body = wanted
            elif matches_live(wanted, now) or self._left_out.explains(wanted, now):
                return None
            else:
                body = {**wanted, "metadata": {**wanted["metadata"], **_seen(now)}}
            answer = await self._cluster.apply(kind, body, manager)
            self._left_out.note(wanted, answer)
            return answer

        if live is not None:
            _require_ours(live, manifest, uid)
            if is_terminating(live):
                raise still_there({**live, "kind": manifest["kind"]})
            if manifest["kind"] in _CREATED_ONCE:
                return
        live = await self._write(kind, manifest, live, replace, "replace")
        await self._write(kind, manifest, live, apply, "create" if live is None else "apply")

    async def _write(
        self, kind: Kind, it: Object, live: Object | None, write: _Write, verb: str
    ) -> Object | None:
        """Let `write` change the object against the version that it is given, `live` first, and
        the newest one when that has passed; return the object as it is then. Raises ApiError.

        A write that arrives late, when another operator works already, is refused by this.
        """
        for last in (False, False, True):
            try:
                answer = await write(live)
            except ApiError as error:
                if live is None or last or (error.status, error.reason) != (409, "Conflict"):
                    raise
                live = await self._cluster.get(kind, namespace_of(it), name_of(it))
            else:
                if answer is None:
                    return live
                self._wrote(kind, live, answer, verb)
                return answer
        return live

    async def _remove(self, manifest: Object, uid: str) -> None:
        kind = kind_of(manifest)
        live = await self._live(kind, manifest)
        if live is None or not _is_ours(live, uid):
            return
        if is_terminating(live):
            raise still_there({**live, "kind": manifest["kind"]})
        await self._cluster.delete(kind, namespace_of(live), name_of(live), live["metadata"]["uid"])
        self._metrics.count_write(kind.plural, "delete")
        _log.info("deleted", kind=kind.plural, namespace=namespace_of(live), name=name_of(live))

    async def _live(self, kind: Kind, manifest: Object) -> Object | None:
        """Return the object as the watches show it, or where they show nothing, as the API server
        has it: an object without our labels would be invisible to them."""
        namespace, name = namespace_of(manifest), name_of(manifest)
        owner = Key(namespace, label(manifest, labels.DEPLOYMENT))
        found = self._view.find(kind, owner, name)
        return found if found is not None else await self._cluster.get(kind, namespace, name)

    def _wrote(self, kind: Kind, before: Object | None, answer: Object, verb: str) -> None:
        namespace, name = namespace_of(answer), name_of(answer)
        self._view.wrote(kind, before, answer, time.monotonic())
        self._metrics.count_write(kind.plural, verb)
        _log.info(verb, kind=kind.plural, namespace=namespace, name=name)


def _seen(live: Object) -> Object:
    """Return the metadata that makes a write one of this version of the object alone."""
    return {"resourceVersion": live["metadata"]["resourceVersion"]}


def _has_foreign_parts(manifest: Object, live: Object) -> bool:
    return manifest["kind"] in _WHOLE and not matches_live(live["spec"], manifest["spec"])


def _is_ours(live: Object, uid: str) -> bool:
    owners = live["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def _require_ours(live: Object, manifest: Object, uid: str) -> None:
    """Raise ApiError for an object of that name which somebody else made."""
    owners = live["metadata"].get("ownerReferences") or ()
    foreign = any(owner.get("controller") and owner.get("uid") != uid for owner in owners)
    managed = label(live, "app.kubernetes.io/managed-by") == labels.MANAGER
    if _is_ours(live, uid) or (managed and not foreign):
        return
    if foreign and managed:
        # A former deployment of the same name: the garbage collector is about to take it
        raise ApiError(409, "Conflict", f"{described(manifest)} belongs to a deleted LLMDeployment")
    raise ApiError(
        422,
        "Foreign",
        "it exists already and is not Kvasir's; rename the LLMDeployment, or delete it",
    )
