"""The operator's LLMDeploymentClass, and taking LLMDeployments of it: one operator at a time.

`status.className` is the lock. An operator writes it only where it is free, against the
resourceVersion that it has seen, and nothing else of an LLMDeployment before that. Of two operators
that both think an LLMDeployment theirs, the API server lets one take it.
"""

from __future__ import annotations

import time

import structlog
from pydantic import ValidationError

from kvasir import validation
from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object, annotation, name_of, namespace_of
from kvasir.resource import labels
from kvasir.resource.class_defaults.defaults_spec import ClassSettings
from kvasir.resource.class_defaults.inheritance import Inheritance, inherit
from kvasir.resource.ownership.deployment_class import (
    MADE_AGAIN,
    class_manifest,
    class_of,
    held_by,
    read_settings,
    reporting_class,
    unserved,
)
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.view import View
from kvasir_operator.kinds import CLASSES, CLUSTER_ROLES, LLMDEPLOYMENTS
from kvasir_operator.objects import status_manifest
from kvasir_operator.plan.inherited_values import values_of
from kvasir_operator.settings import OperatorSettings

_SETTINGS = ("defaults", "profiles")
"""Fields of a class that people write."""

_log = structlog.get_logger("kvasir_operator.controller.class_holder")


class ClassTakenError(Exception):
    """The operator's class is another operator's; one sentence on what to do."""


class ClassHolder:
    """Keeper of the class, and of the LLMDeployments that are taken in its name."""

    def __init__(
        self, cluster: Cluster, view: View, settings: OperatorSettings, metrics: Metrics
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._settings = settings
        self._metrics = metrics

    async def ensure_class(self) -> None:
        """Make the class if there is none, and keep its namespaces. Raises ClassTakenError, and
        ApiError."""
        wanted = class_manifest(
            self._settings.class_name,
            self._settings.controller,
            self._settings.watch_namespaces,
            is_default=self._settings.default_class,
        )
        live = await self._cluster.get(CLASSES, None, self._settings.class_name)
        if live is None:
            await self._create_class(wanted)
            return
        await self._keep(live, wanted)

    async def _keep(self, live: Object, wanted: Object) -> None:
        controller = live["spec"]["controller"]
        if controller != self._settings.controller:
            raise ClassTakenError(
                f"LLMDeploymentClass {self._settings.class_name} is served by {controller}, not by"
                f" {self._settings.controller}; give --class-name another value (class.name of the"
                " chart), or delete the class if that operator is gone"
            )
        namespaces = wanted["spec"]["namespaces"]
        if sorted(live["spec"].get("namespaces") or ()) != namespaces:
            seen = {"resourceVersion": live["metadata"]["resourceVersion"]}
            body = {"metadata": seen, "spec": {"namespaces": namespaces}}
            live = await self._cluster.merge(CLASSES, "", name_of(live), body)
            self._metrics.count_write(CLASSES.plural, "apply")
        await self._keep_settings(live)

    async def _keep_settings(self, live: Object) -> None:
        """Apply the settings that flags give, and take back those that they gave before; what users
        have written beside them stays."""
        given = self._settings.class_settings
        fields = live["metadata"].get("managedFields") or ()
        applied = any(
            it.get("manager") == labels.MANAGER and it.get("operation") == "Apply" for it in fields
        )
        if given is None and not applied:
            self._view.saw_class(live)
            return
        head = {name: live[name] for name in ("apiVersion", "kind")}
        metadata = {"name": name_of(live), "uid": live["metadata"]["uid"]}
        body = {**head, "metadata": metadata, "spec": dict(given or {})}
        answer = await self._cluster.apply(CLASSES, body, labels.MANAGER)
        self._view.saw_class(answer)
        if answer["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"]:
            self._metrics.count_write(CLASSES.plural, "apply")

    async def _create_class(self, wanted: Object) -> None:
        if self._settings.class_owner:
            owner = await self._owner()
            if owner is None:
                return  # the release is being uninstalled
            wanted["metadata"]["ownerReferences"] = [owner]
        before = self._view.own_class()
        if before is not None:
            wanted["spec"] |= {it: before["spec"][it] for it in _SETTINGS if it in before["spec"]}
        elif await self._gave_something():
            wanted["metadata"]["annotations"][MADE_AGAIN] = "true"
        try:
            live = await self._cluster.create(CLASSES, wanted, labels.MANAGER)
        except ApiError as error:
            if error.status != 409 or error.reason != "AlreadyExists":
                raise
            await self.ensure_class()  # another operator was faster
            return
        self._metrics.count_write(CLASSES.plural, "create")
        _log.info("create", kind=CLASSES.plural, name=self._settings.class_name)
        await self._keep_settings(live)

    async def _gave_something(self) -> bool:
        """Tell if LLMDeployments have values of a class that nobody knows any more."""
        for namespace in self._settings.watch_namespaces or (None,):
            for it in await self._cluster.list(LLMDEPLOYMENTS, namespace):
                if held_by(it) == self._settings.class_name and values_of(it.get("status") or {}):
                    return True
        return False

    def inherit(self, resource: Object) -> tuple[Inheritance | None, str]:
        """Complete an LLMDeployment by the class; with a sentence instead if that cannot be read,
        which a definition of another version may bring about."""
        own = self._view.own_class()
        try:
            settings = read_settings(own) if own is not None else ClassSettings()
        except ValidationError as error:
            told = "; ".join(validation.sentences(error, ClassSettings, whole="its spec"))
            name = self._settings.class_name
            return None, f"LLMDeploymentClass {name} cannot be read: {told}; correct it."
        return inherit(resource["spec"], settings, self._settings.class_name), ""

    def is_made_again(self) -> bool:
        """Tell if the class was lost while no operator ran, and nobody has looked at it since."""
        own = self._view.own_class()
        return own is not None and annotation(own, MADE_AGAIN) == "true"

    async def _owner(self) -> Object | None:
        role = await self._cluster.get(CLUSTER_ROLES, None, self._settings.class_owner)
        if role is None:
            return None
        return {
            "apiVersion": CLUSTER_ROLES.api_version,
            "kind": "ClusterRole",
            "name": name_of(role),
            "uid": role["metadata"]["uid"],
        }

    def is_ours(self, resource: Object) -> bool:
        """Tell if an LLMDeployment is of the operator's class, whoever has taken it so far. One
        that it has taken stays its own while the class that is named now does not exist."""
        classes, own = self._view.classes(), self._settings.class_name
        wanted = class_of(resource, classes)
        if held_by(resource) != own:
            return wanted == own
        return wanted == own or all(each.name != wanted for each in classes)

    def unserved(self, resource: Object) -> str | None:
        """Return why no operator will serve an LLMDeployment, if this one is to tell: of what
        it has taken and goes on serving, and of what nobody has."""
        classes = self._view.classes()
        if held_by(resource) == self._settings.class_name:
            return unserved(resource, classes)
        if any(each.name == held_by(resource) for each in classes):
            return None
        reporter = reporting_class(namespace_of(resource), classes)
        return unserved(resource, classes) if reporter == self._settings.class_name else None

    async def take(self, resource: Object) -> Object | None:
        """Take an LLMDeployment of the class; return it as it is now, or None while the operator of
        another class still has it. Raises ApiError, 409 if it has changed meanwhile."""
        holder = held_by(resource)
        if holder == self._settings.class_name:
            return resource
        # Asked, not looked up: the watch may not have shown a class that is new
        if holder and await self._cluster.get(CLASSES, None, holder) is not None:
            return None
        return await self._write(resource, self._settings.class_name)

    async def let_go(self, resource: Object) -> None:
        """Set an LLMDeployment of another class free for that class's operator. Raises ApiError."""
        if held_by(resource) == self._settings.class_name:
            await self._write(resource, "")

    async def _write(self, resource: Object, class_name: str) -> Object:
        kept = {**(resource.get("status") or {}), "className": class_name}
        status = {name: value for name, value in kept.items() if value != ""}
        seen = resource["metadata"]["resourceVersion"]
        body = status_manifest(resource, status, resourceVersion=seen)
        answer = await self._cluster.apply(LLMDEPLOYMENTS, body, labels.MANAGER, "status")
        answer["kind"] = "LLMDeployment"
        self._view.wrote(LLMDEPLOYMENTS, resource, answer, time.monotonic())
        self._metrics.count_write(LLMDEPLOYMENTS.plural, "take" if class_name else "let go")
        where = {"namespace": namespace_of(answer), "name": name_of(answer)}
        _log.info("take" if class_name else "let go", kind=LLMDEPLOYMENTS.plural, **where)
        return answer
