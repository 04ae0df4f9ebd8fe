"""State of the cluster from the watches: kopf's indexes by LLMDeployment, under our own writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvasir.kube import Kind
from kvasir.kube.objects import Object, holds, is_terminating, label, name_of, namespace_of
from kvasir.resource import labels
from kvasir.resource.ownership.deployment_class import DeploymentClass, held_by, read_class
from kvasir.resource.ownership.name_claims import read_claim
from kvasir_operator.controller.overlay import Overlay
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.kinds import (
    ACCOUNTS,
    BUDGETS,
    CLAIMS,
    CLASSES,
    DEPLOYMENTS,
    JOBS,
    LLMDEPLOYMENTS,
    MODEL_NAMES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SERVICES,
)

CHILDREN = (
    DEPLOYMENTS,
    PODS,
    JOBS,
    CLAIMS,
    SERVICES,
    BUDGETS,
    NETWORK_POLICIES,
    ACCOUNTS,
)
"""Kinds that are watched by the label of their LLMDeployment."""

CLUSTER_WIDE = (CLASSES, MODEL_NAMES)
"""Kinds without a namespace."""

WATCHED = (LLMDEPLOYMENTS, *CLUSTER_WIDE, *CHILDREN)
"""Kinds that are watched always; nodes only where the operator may."""
ROUTERS = Key("", "routers")
"""Key of the routers' pods in the index of pods."""

_Index = Mapping[Key, Iterable[Object]]


def index_id(kind: Kind) -> str:
    """Return the name of the index of a kind."""
    return f"indexed_{kind.plural}"


def key_of(kind: Kind, it: Mapping[str, Any]) -> Key | None:
    """Return the key of the LLMDeployment that an object belongs to, of a class its own; None if
    the object belongs to none."""
    if kind is LLMDEPLOYMENTS:
        return Key(namespace_of(it), name_of(it))
    if kind in (CLASSES, NODES):
        return Key("", name_of(it))
    if kind is MODEL_NAMES:
        claim = read_claim(it)
        return Key(*claim.holder) if claim is not None else None
    if kind is PODS and label(it, labels.COMPONENT) == labels.ROUTER:
        return ROUTERS
    owner = label(it, labels.DEPLOYMENT)
    return Key(namespace_of(it), owner) if owner else None


class View:
    """Reader of kopf's indexes, which exist as soon as it calls the first handler."""

    def __init__(self, class_name: str = labels.DEFAULT_CLASS) -> None:
        self._class_name = class_name
        self._indexes: dict[str, _Index] = {}
        self._overlay = Overlay()
        self._own_class: Object | None = None
        self.class_gone = asyncio.Event()
        """Set when the operator's own class is deleted."""

    def bind(self, indexes: Mapping[str, Any]) -> None:
        """Take the indexes out of a handler's arguments."""
        if not self._indexes:
            names = map(index_id, (*WATCHED, NODES))
            self._indexes = {name: indexes[name] for name in names if name in indexes}

    def keys(self) -> list[Key]:
        """Return the keys of all LLMDeployments."""
        return list(self._index(LLMDEPLOYMENTS))

    def resource(self, key: Key) -> Object | None:
        """Return the LLMDeployment; None = it is gone."""
        return next(self._seen(LLMDEPLOYMENTS, key), None)

    def resources(self) -> list[Object]:
        """Return all LLMDeployments, also those of other classes."""
        return [it for key in self.keys() for it in self._index(LLMDEPLOYMENTS)[key]]

    def held(self) -> list[Object]:
        """Return the LLMDeployments that this operator has taken."""
        return [it for it in self.resources() if held_by(it) == self._class_name]

    def has_external(self) -> bool:
        """Tell if servers of others serve a model that this operator has taken."""
        return any((it.get("spec") or {}).get("external") for it in self.held())

    def holds(self, key: Key) -> bool:
        """Tell if this operator has taken the LLMDeployment."""
        resource = self.resource(key)
        return resource is not None and held_by(resource) == self._class_name

    def classes(self) -> list[DeploymentClass]:
        """Return the LLMDeploymentClasses; the operator's own also while it is missing."""
        found = {key.name: it for key, those in dict(self._index(CLASSES)).items() for it in those}
        own = DeploymentClass("", self._class_name, is_default=False, namespaces=())
        missing = [own] if self._class_name not in found else []
        return [*map(read_class, found.values()), *missing]

    def own_class(self) -> Object | None:
        """Return the operator's own class, as it was last while it is missing: what it gives stays
        so until it is made again. None = it was never seen."""
        found = self._index(CLASSES).get(Key("", self._class_name), ())
        self._own_class = next(iter(found), self._own_class)
        return self._own_class

    def saw_class(self, it: Object) -> None:
        """Note the operator's own class as it was read before the watch has shown it."""
        if self._own_class is None:
            self._own_class = it

    def claims(self, holder: Key) -> list[Object]:
        """Return the ModelNames of an LLMDeployment."""
        return list(self._index(MODEL_NAMES).get(holder, ()))

    def claim(self, object_name: str) -> Object | None:
        """Return the ModelName of that name."""
        return next(iter(self._index(MODEL_NAMES).get(Key("", object_name), ())), None)

    def claim_holders(self) -> list[Key]:
        """Return the keys of LLMDeployments that have names, also of those that are gone."""
        return [key for key in self._index(MODEL_NAMES) if key.namespace]

    def children(self, kind: Kind, key: Key, component: str = "") -> tuple[Object, ...]:
        """Return an LLMDeployment's objects of a kind, by name; only of `component` if given."""
        found = [
            it
            for it in self._seen(kind, key)
            if not component or label(it, labels.COMPONENT) == component
        ]
        return tuple(sorted(found, key=name_of))

    def same_downloads(self, key: Key, suffix: str) -> tuple[Object, ...]:
        """Return the Jobs of other LLMDeployments in the namespace whose names end in `suffix`."""
        others = [it for it in list(self._index(JOBS)) if it != key]
        return tuple(
            job
            for other in others
            if other.namespace == key.namespace
            for job in self.children(JOBS, other)
            if name_of(job).endswith(suffix) and not is_terminating(job)
        )

    def find(self, kind: Kind, owner: Key, name: str) -> Object | None:
        """Return an object of a watched kind that has our labels, or that we have just written."""
        same = (it for it in self._index(kind).get(owner, ()) if name_of(it) == name)
        return self._overlay.see((kind, owner.namespace, name), next(same, None), time.monotonic())

    def ready_routers(self, namespace: str) -> list[Object]:
        """Return the router pods in `namespace` that get requests."""
        return [
            pod
            for pod in self._index(PODS).get(ROUTERS, ())
            if namespace_of(pod) == namespace and holds(pod, "Ready") and not is_terminating(pod)
        ]

    def engine_pods(self) -> list[Object]:
        """Return the engine pods of the LLMDeployments that this operator has taken."""
        return [
            pod
            for key in list(self._index(PODS))
            if key != ROUTERS and self.holds(key)
            for pod in self._seen(PODS, key)
            if label(pod, labels.COMPONENT) == labels.ENGINE
        ]

    def node(self, name: str) -> Object | None:
        """Return what is kept of a node; None = it is gone, or nodes are not watched."""
        return next(iter(self._index(NODES).get(Key("", name), ())), None)

    def wrote(self, kind: Kind, before: Object | None, answer: Object, now: float) -> None:
        """Record that a write made `answer` of what was `before`."""
        if kind in WATCHED:
            key = (kind, namespace_of(answer), name_of(answer))
            self._overlay.wrote(key, before, answer, now)

    def deleted(self, kind: Kind, it: Mapping[str, Any]) -> None:
        """Record that the watch says the object is gone."""
        self._overlay.forget((kind, namespace_of(it), name_of(it)))
        if kind is CLASSES and name_of(it) == self._class_name:
            self.class_gone.set()

    def _seen(self, kind: Kind, key: Key) -> Iterator[Object]:
        now = time.monotonic()
        for it in list(self._index(kind).get(key, ())):
            seen = self._overlay.see((kind, namespace_of(it), name_of(it)), it, now)
            if seen is not None:
                yield seen

    def _index(self, kind: Kind) -> _Index:
        return self._indexes.get(index_id(kind), {})
