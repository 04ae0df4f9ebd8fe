"""Claim model names for LLMDeployments, and release them when nothing serves them any more.

A claim outlives everything but its LLMDeployment: restarts, edits, other LLMDeployments that are
older. One that was deleted and is back under its old name, as from a backup, finds its claims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

import structlog

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object, holds, is_terminating, name_of, namespace_of, parse_time
from kvasir.resource import labels
from kvasir.resource.ownership.deployment_class import class_of, held_by, read_class
from kvasir.resource.ownership.model_name import claim_manifest
from kvasir.resource.ownership.name_claims import (
    Holder,
    NameClaim,
    claim_object_name,
    names_of,
    read_claim,
)
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.view import View
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.kinds import CLASSES, LLMDEPLOYMENTS, MODEL_NAMES
from kvasir_operator.settings import OperatorSettings

_LOOK_AGAIN = 2.0

_log = structlog.get_logger("kvasir_operator.controller.name_claimer")


class NameClaimer:
    """Writer of ModelNames in the operator's class."""

    def __init__(
        self, cluster: Cluster, view: View, settings: OperatorSettings, metrics: Metrics
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._settings = settings
        self._metrics = metrics
        self._seen: dict[Key, str] = {}

    async def claim(self, resource: Object, names: Iterable[str]) -> dict[str, str]:
        """Claim names for an LLMDeployment. Return those that others have, each with its holder as
        namespace/name. Raises ApiError."""
        self._seen[Key(namespace_of(resource), name_of(resource))] = resource["metadata"]["uid"]
        lost: dict[str, str] = {}
        for name in names:
            holder = await self._claim_one(resource, name)
            if holder is not None:
                lost[name] = holder
        return lost

    async def claim_by_age(self) -> None:
        """Claim all names that nobody has yet, for the LLMDeployments that an operator accepted
        before, then by age: what was made while no operator ran, or before there were claims.
        Raises ApiError."""
        selector = f"{labels.CLASS}={self._settings.class_name}"
        claimed = {name_of(it) for it in await self._cluster.list(MODEL_NAMES, selector=selector)}
        for resource in sorted(await self._own_resources(), key=_age):
            holder = Holder(namespace_of(resource), name_of(resource))
            for name in names_of(resource):
                object_name = claim_object_name(self._settings.class_name, name)
                if object_name not in claimed:
                    await self._create(name, holder, resource["metadata"]["uid"])
                    claimed.add(object_name)

    async def release(self, key: Key, kept: Collection[str]) -> None:
        """Release the names of an LLMDeployment, but for those in `kept`. Raises ApiError."""
        for it in self._view.claims(key):
            claim = read_claim(it)
            if claim is not None and claim.name not in kept:
                await self._delete(claim)

    async def release_gone(self, key: Key) -> float | None:
        """Release the names of an LLMDeployment that does not exist; return the seconds after which
        to look again, if it may still come. Raises ApiError."""
        seen = self._seen.get(key)
        found = [(it, claim) for it in self._view.claims(key) if (claim := read_claim(it))]
        if found and await self._exists(key):
            return _LOOK_AGAIN  # the watch has not shown it yet
        left = self._seconds_left
        young = [it for it, claim in found if claim.holder_uid != seen and left(it) > 0]
        for it, claim in found:
            if it not in young:
                await self._delete(claim)
        # Not before: a try that failed is repeated with what is known
        self._seen.pop(key, None)
        return max(map(left, young), default=None)

    async def _claim_one(self, resource: Object, name: str) -> str | None:
        """Claim a name; return its holder if that is another LLMDeployment."""
        holder = Holder(namespace_of(resource), name_of(resource))
        uid = resource["metadata"]["uid"]
        object_name = claim_object_name(self._settings.class_name, name)
        live = self._view.claim(object_name) or await self._cluster.get(
            MODEL_NAMES, None, object_name
        )
        if live is None:
            if await self._create(name, holder, uid):
                return None
            live = await self._cluster.get(MODEL_NAMES, None, object_name)
            if live is None:
                raise ApiError(409, "Conflict", f"the claim of model name {name!r} has just gone")
        claim = read_claim(live)
        if claim is None or claim.name != name or claim.holder != holder:
            return "/".join(claim.holder) if claim is not None else f"ModelName {object_name}"
        if claim.holder_uid != uid:
            await self._adopt(live, uid)
        return None

    async def _adopt(self, live: Object, uid: str) -> None:
        """Write the uid of an LLMDeployment that is back under its old name."""
        metadata = {"resourceVersion": live["metadata"]["resourceVersion"]}
        body = {"metadata": metadata, "spec": {"claimedBy": {"uid": uid}}}
        await self._cluster.merge(MODEL_NAMES, "", name_of(live), body)
        self._metrics.count_write(MODEL_NAMES.plural, "adopt")
        _log.info("adopt", kind=MODEL_NAMES.plural, name=name_of(live))

    async def _create(self, name: str, holder: Holder, uid: str) -> bool:
        """Create a claim; tell if this was the first one."""
        made = claim_manifest(self._settings.class_name, name, holder, uid)
        try:
            await self._cluster.create(MODEL_NAMES, made, labels.MANAGER)
        except ApiError as error:
            if error.status == 409 and error.reason == "AlreadyExists":
                return False
            raise
        self._metrics.count_write(MODEL_NAMES.plural, "create")
        _log.info("claim", model=name, namespace=holder.namespace, name=holder.name)
        return True

    async def _delete(self, claim: NameClaim) -> None:
        await self._cluster.delete(MODEL_NAMES, "", claim.object_name, claim.uid)
        self._metrics.count_write(MODEL_NAMES.plural, "delete")
        holder = claim.holder
        _log.info("release", model=claim.name, namespace=holder.namespace, name=holder.name)

    async def _exists(self, key: Key) -> bool:
        """Tell if there is such an LLMDeployment in the namespaces that are watched."""
        only = self._settings.watch_namespaces
        if only and key.namespace not in only:
            return False
        return await self._cluster.get(LLMDEPLOYMENTS, key.namespace, key.name) is not None

    def _seconds_left(self, claim: Object) -> float:
        """Return the seconds until a claim is old enough to be released though its LLMDeployment
        was never seen; 0 or less = it is."""
        made = parse_time(claim["metadata"]["creationTimestamp"])
        return self._settings.restore_seconds - (datetime.now(UTC) - made).total_seconds()

    async def _own_resources(self) -> list[Object]:
        classes = [read_class(it) for it in await self._cluster.list(CLASSES)]
        found: list[Object] = []
        for namespace in self._settings.watch_namespaces or (None,):
            found += await self._cluster.list(LLMDEPLOYMENTS, namespace)
        own = self._settings.class_name
        return [
            it
            for it in found
            if class_of(it, classes) == own and held_by(it) in ("", own) and not is_terminating(it)
        ]


def _age(resource: Object) -> tuple[bool, str, str]:
    """Return what sorts LLMDeployments: those that were accepted, then the oldest."""
    metadata = resource["metadata"]
    accepted = holds(resource, "Accepted")
    return not accepted, str(metadata["creationTimestamp"]), str(metadata["uid"])
