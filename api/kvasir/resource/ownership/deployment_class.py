"""The LLMDeploymentClass resource, and which class an LLMDeployment is of.

One class stands for one release: its operator serves the LLMDeployments of the class and no others,
so two releases in one cluster never write the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field, StringConstraints

from kvasir.resource import labels
from kvasir.resource.class_defaults.defaults_spec import KNOWN_PROFILE, ClassSettings
from kvasir.resource.field_types import DNSLabel
from kvasir.resource.strict_model import read_known, rule, rules

KIND: Final = "LLMDeploymentClass"
PLURAL: Final = "llmdeploymentclasses"

IS_DEFAULT: Final = "kvasir.dev/is-default-class"
"""Annotation: "true" = LLMDeployments that name no class are of this one."""


MADE_AGAIN: Final = "kvasir.dev/made-again"
"""Annotation: "true" = the class was missing when its operator began, which has made it anew,
perhaps without what it gave. Until it is removed, engines that would lose by that stay."""


class ClassSpec(ClassSettings):
    """The release that serves the LLMDeployments of a class, and what they have from it."""

    model_config = rules(
        rule(
            "self.controller == oldSelf.controller",
            "controller cannot change; delete the class and let the other operator make it",
        ),
        KNOWN_PROFILE,
    )

    controller: Annotated[
        str, StringConstraints(pattern=r"^[-a-z0-9.]+/[-a-z0-9./]*[a-z0-9]$", max_length=250)
    ]
    """Operator that serves the class, as kvasir.dev/NAMESPACE/LEASE."""

    namespaces: Annotated[
        list[DNSLabel],
        Field(max_length=1024, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = []
    """Namespaces that its operator watches; all if there are none."""


class DeploymentClass(NamedTuple):
    """One LLMDeploymentClass. Sorts by age."""

    created: str
    """metadata.creationTimestamp: RFC 3339 in UTC, which sorts as text."""
    name: str
    is_default: bool
    namespaces: tuple[str, ...]
    """Namespaces that it is for; empty = all."""

    def is_for(self, namespace: str) -> bool:
        """True if its operator watches a namespace."""
        return not self.namespaces or namespace in self.namespaces


def class_manifest(
    name: str, controller: str, namespaces: Iterable[str], *, is_default: bool
) -> dict[str, Any]:
    """The LLMDeploymentClass of a release."""
    return {
        "apiVersion": f"{labels.GROUP}/{labels.VERSION}",
        "kind": KIND,
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": labels.MANAGER},
            "annotations": {IS_DEFAULT: "true" if is_default else "false"},
        },
        "spec": {"controller": controller, "namespaces": sorted(namespaces)},
    }


def read_settings(it: Mapping[str, Any]) -> ClassSettings:
    """The defaults and profiles of an LLMDeploymentClass; fields that this version does not know,
    since a newer definition has them, have no effect. Raises pydantic.ValidationError."""
    spec = it.get("spec") or {}
    content = {name: spec[name] for name in ("defaults", "profiles") if name in spec}
    return read_known(ClassSettings, content)[0]


def read_class(it: Mapping[str, Any]) -> DeploymentClass:
    """The class that an LLMDeploymentClass is."""
    metadata = it["metadata"]
    annotations = metadata.get("annotations") or {}
    namespaces = (it.get("spec") or {}).get("namespaces") or ()
    return DeploymentClass(
        str(metadata.get("creationTimestamp", "")),
        str(metadata["name"]),
        annotations.get(IS_DEFAULT) == "true",
        tuple(map(str, namespaces)),
    )


def held_by(resource: Mapping[str, Any]) -> str:
    """The class whose operator has taken a resource; "" = none has."""
    return str((resource.get("status") or {}).get("className") or "")


def class_of(resource: Mapping[str, Any], classes: Iterable[DeploymentClass]) -> str:
    """The class that a resource shall be served by; "" = none.

    It is the one that the resource names; else the one that has taken it already, while that
    exists; else the default class of its namespace.
    """
    classes = list(classes)
    if named := (resource.get("spec") or {}).get("className"):
        return str(named)
    taken = held_by(resource)
    if any(each.name == taken for each in classes):
        return taken
    return default_class(str(resource["metadata"].get("namespace", "")), classes)


def default_class(namespace: str, classes: Iterable[DeploymentClass]) -> str:
    """The default class in a namespace: one that is for named namespaces comes before one for all,
    then the oldest. "" = there is none."""
    own = (each for each in classes if each.is_default and each.is_for(namespace))
    first = min(own, key=lambda each: (not each.namespaces, each), default=None)
    return first.name if first else ""


def reporting_class(namespace: str, classes: Iterable[DeploymentClass]) -> str:
    """The class whose operator tells of a resource that no class serves: the default one of its
    namespace, else the oldest that is for it; "" = there is none."""
    classes = list(classes)
    if default := default_class(namespace, classes):
        return default
    oldest = min((each for each in classes if each.is_for(namespace)), default=None)
    return oldest.name if oldest else ""


def unserved(resource: Mapping[str, Any], classes: Iterable[DeploymentClass]) -> str | None:
    """Return why no operator will serve a resource, a sentence with the remedy; None = one will."""
    found = {each.name: each for each in classes}
    namespace = str(resource["metadata"].get("namespace", ""))
    wanted = class_of(resource, found.values())
    choices = sorted(each.name for each in found.values() if each.is_for(namespace))
    remedy = f"set spec.className to {' or '.join(choices)}" if choices else "install a release"
    if not wanted:
        return f"No LLMDeploymentClass is the default of namespace {namespace}; {remedy}."
    if wanted not in found:
        return (
            f"spec.className is {wanted}, and no such LLMDeploymentClass exists; {remedy}, or"
            " install the release that serves it."
        )
    if not found[wanted].is_for(namespace):
        return (
            f"LLMDeploymentClass {wanted} is not for namespace {namespace}, only for"
            f" {', '.join(found[wanted].namespaces)}; {remedy}."
        )
    return None
