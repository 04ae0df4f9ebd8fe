"""`spec.template`: a PodTemplate of the user's that is merged over the engine pods' own.

Its `spec` is a PodSpec: what is not named here is passed on as it is and checked by the API server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from kvasir.resource import labels
from kvasir.resource.field_types import DNSLabel, LabelKey, Text, int_or_string
from kvasir.resource.gpus.resources_spec import NVIDIA
from kvasir.resource.pod_template import FreeAnnotations, FreeLabels, Open
from kvasir.resource.strict_model import RULES, StrictModel, list_map, rule

_OPEN = "x-kubernetes-preserve-unknown-fields"
_KVASIRS = "it is set by Kvasir; remove it"

POD_FIELDS = {
    "restartPolicy": "a Deployment's containers are always started again; remove it",
    "terminationGracePeriodSeconds": "use spec.lifecycle.drainSeconds and preStopSeconds",
    "activeDeadlineSeconds": "an engine has no end; remove it",
    "readinessGates": _KVASIRS,
    "hostNetwork": "engines of one node would have the same ports; remove it",
    "nodeName": "use nodeSelector or affinity",
}
"""Fields of a PodSpec that a template may not have, each with the remedy."""

ENGINE_FIELDS = {
    "image": "use spec.engine.image",
    "command": "use spec.engine.command, of engine.type custom",
    "args": "use spec.engine.args",
    "env": "use spec.engine.env",
    "ports": "use spec.engine.ports, of engine.type custom",
    "lifecycle": "use spec.lifecycle.preStopSeconds",
    "startupProbe": "use spec.engine.probes and spec.lifecycle.startupSeconds",
    "readinessProbe": "use spec.engine.probes",
    "livenessProbe": "use spec.engine.probes",
}
"""Fields of the engine's container that a template may not have, each with the remedy."""

RESERVED_VOLUMES = ("models", "fleet")
"""Names of the volumes that a template may not replace."""

RESERVED_MOUNTS = (labels.MODELS_DIRECTORY, labels.FLEET_DIRECTORY)
"""Paths in the engine's container at which a template may mount nothing."""

_ENGINE = f"self.name != '{labels.ENGINE_CONTAINER}'"
_COUNTED = ["cpu", "memory", NVIDIA]
_MOUNTED = "a path at which Kvasir mounts something; mount yours elsewhere"
_AMOUNT = "use spec.resources for cpu, memory and nvidia.com/gpu of the engine"


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_Amount = Annotated[str, BeforeValidator(_text), int_or_string(maxLength=32)]


def _open(*those: dict[str, str]) -> ConfigDict:
    """The `model_config` of a part that has further fields."""
    extra: dict[str, Any] = {_OPEN: True, **({RULES: list(those)} if those else {})}
    return ConfigDict(extra="allow", json_schema_extra=extra)


def _given(part: StrictModel, remedies: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each field of `remedies` that was written, with its remedy."""
    written = part.model_dump(by_alias=True, exclude_unset=True)
    return ((name, remedy) for name, remedy in remedies.items() if name in written)


class TemplateMount(StrictModel):
    """A volume in a container, as in a PodSpec."""

    model_config = _open()

    name: DNSLabel
    """The volume's name."""

    mount_path: Annotated[str, Field(min_length=1, max_length=1024)]
    """Path in the container."""


class ContainerResources(StrictModel):
    """Resources of a container, as in a PodSpec."""

    model_config = _open()

    limits: Annotated[dict[LabelKey, _Amount], Field(max_length=16)] = {}
    """Maximum resources, such as rdma/ib."""

    requests: Annotated[dict[LabelKey, _Amount], Field(max_length=16)] = {}
    """Resources that are set aside."""


class TemplateInitContainer(StrictModel):
    """An init container, as in a PodSpec."""

    model_config = _open()

    name: DNSLabel
    """The container's name."""


class TemplateContainer(StrictModel):
    """A container, as in a PodSpec: `engine` is merged over Kvasir's own, others are added."""

    model_config = _open(
        *(
            rule(f"{_ENGINE} || !has(self.{name})", f"{name} of container engine: {remedy}")
            for name, remedy in ENGINE_FIELDS.items()
        ),
        rule(
            f"{_ENGINE} || !has(self.volumeMounts) || self.volumeMounts.all(it,"
            f" !(it.mountPath in {list(RESERVED_MOUNTS)}))",
            f"volumeMounts of container engine has {_MOUNTED}",
        ),
        *(
            rule(
                f"{_ENGINE} || !has(self.resources) || !has(self.resources.{kind})"
                f" || {_COUNTED}.all(it, !(it in self.resources.{kind}))",
                f"resources.{kind} of container engine: {_AMOUNT}",
            )
            for kind in ("limits", "requests")
        ),
    )

    name: DNSLabel
    """The container's name."""

    volume_mounts: Annotated[list[TemplateMount], Field(max_length=64)] = []
    """Volumes in it."""

    resources: ContainerResources | None = None
    """Its resources; of the engine those that spec.resources has no field for."""

    image: Text | None = None
    """Its image; refused for the engine."""

    command: Annotated[list[Text], Field(max_length=64)] = []
    """Its command; refused for the engine."""

    args: Annotated[list[Text], Field(max_length=256)] = []
    """Its arguments; refused for the engine."""

    env: Annotated[list[Open], Field(max_length=256)] = []
    """Its variables; refused for the engine."""

    ports: Annotated[list[Open], Field(max_length=64)] = []
    """Its ports; refused for the engine."""

    lifecycle: Open | None = None
    """Its hooks at start and end; refused for the engine."""

    startup_probe: Open | None = None
    """Its startup probe; refused for the engine."""

    readiness_probe: Open | None = None
    """Its readiness probe; refused for the engine."""

    liveness_probe: Open | None = None
    """Its liveness probe; refused for the engine."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name == labels.ENGINE_CONTAINER:
            for problem in self._taken():
                raise ValueError(problem)
        return self

    def _taken(self) -> Iterator[str]:
        for name, remedy in _given(self, ENGINE_FIELDS):
            yield f"{name} of container engine: {remedy}"
        if any(mount.mount_path in RESERVED_MOUNTS for mount in self.volume_mounts):
            yield f"volumeMounts of container engine has {_MOUNTED}"
        for kind in ("limits", "requests"):
            if self.resources is not None and set(_COUNTED) & set(getattr(self.resources, kind)):
                yield f"resources.{kind} of container engine: {_AMOUNT}"


class TemplateVolume(StrictModel):
    """A volume, as in a PodSpec: in place of Kvasir's of the same name, or beside them."""

    model_config = _open(
        rule(
            f"!(self.name in {list(RESERVED_VOLUMES)})",
            "volumes models and fleet are set by Kvasir; give yours another name",
        )
    )

    name: DNSLabel
    """The volume's name."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name in RESERVED_VOLUMES:
            raise ValueError("volumes models and fleet are set by Kvasir; give yours another name")
        return self


class TemplatePodSpec(StrictModel):
    """A PodSpec, merged over the engine pods' own as `kubectl patch` does: maps by key, lists of
    named things by name, other lists whole."""

    model_config = _open(
        *(rule(f"!has(self.{name})", f"{name}: {remedy}") for name, remedy in POD_FIELDS.items())
    )

    containers: Annotated[
        list[TemplateContainer], Field(max_length=16, json_schema_extra=list_map("name"))
    ] = []
    """Containers: `engine`, and others beside it."""

    init_containers: Annotated[
        list[TemplateInitContainer], Field(max_length=16, json_schema_extra=list_map("name"))
    ] = []
    """Containers that run before the engine; with restartPolicy Always beside it, too."""

    volumes: Annotated[
        list[TemplateVolume], Field(max_length=64, json_schema_extra=list_map("name"))
    ] = []
    """Volumes."""

    restart_policy: Text | None = None
    """Refused."""

    termination_grace_period_seconds: int | None = None
    """Refused."""

    active_deadline_seconds: int | None = None
    """Refused."""

    readiness_gates: Annotated[list[Open], Field(max_length=16)] = []
    """Refused."""

    host_network: bool | None = None
    """Refused."""

    node_name: Text | None = None
    """Refused."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, remedy in _given(self, POD_FIELDS):
            raise ValueError(f"{name}: {remedy}")
        return self


class TemplateMetadata(StrictModel):
    """Labels and annotations of engine pods beside Kvasir's own."""

    labels: FreeLabels = {}
    """Further labels."""

    annotations: FreeAnnotations = {}
    """Further annotations."""


class Template(StrictModel):
    """A PodTemplate that is merged over the engine pods' own, after spec.podTemplate."""

    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations."""

    spec: TemplatePodSpec = TemplatePodSpec()
    """A PodSpec, without the fields that Kvasir sets."""

    @property
    def container_names(self) -> tuple[str, ...]:
        """Names of all containers in it."""
        spec = self.spec
        return (*(it.name for it in spec.init_containers), *(it.name for it in spec.containers))

    def pod_spec(self) -> dict[str, Any]:
        """The PodSpec as it was written."""
        return self.spec.model_dump(by_alias=True, exclude_unset=True)
