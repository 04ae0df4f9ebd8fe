"""Environment variables of an engine, from every source that a container's have."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from kvasir.resource.field_types import RESERVED_ENV, EnvName, ObjectName, SecretKey, Text
from kvasir.resource.strict_model import ExactlyOne, StrictModel, list_map, rule, rules

_RESERVED = "[" + ", ".join(f"'{name}'" for name in RESERVED_ENV) + "]"
_ONE_SOURCE = ExactlyOne(
    "valueFrom", "source", "secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef"
)
_ONE_OBJECT = ExactlyOne("envFrom", "object", "secretRef", "configMapRef")


class SecretKeyRef(StrictModel):
    """One key of a Secret in the deployment's namespace."""

    name: ObjectName
    """The Secret's name."""

    key: SecretKey
    """The key in it."""


class EnvSecretKeyRef(SecretKeyRef):
    """One key of a Secret in the deployment's namespace, as a variable."""

    optional: bool | None = None
    """Start engines without the variable where Secret or key do not exist."""


class ConfigMapKeyRef(StrictModel):
    """One key of a ConfigMap in the deployment's namespace."""

    name: ObjectName
    """The ConfigMap's name."""

    key: SecretKey
    """The key in it."""

    optional: bool | None = None
    """Start engines without the variable where ConfigMap or key do not exist."""


class FieldRef(StrictModel):
    """One field of the pod itself."""

    field_path: Annotated[
        str,
        StringConstraints(
            pattern=r"^(metadata\.(name|namespace|uid|(labels|annotations)\['[-A-Za-z0-9_./]+'\])"
            r"|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?))$",
            max_length=400,
        ),
    ]
    """The field, such as metadata.name, spec.nodeName or status.podIP."""


class ResourceFieldRef(StrictModel):
    """One amount of the engine container's resources."""

    resource: Literal[
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
    ]
    """The amount."""

    divisor: Literal["1", "1m", "1k", "1M", "1G", "1Ki", "1Mi", "1Gi"] | None = None
    """Unit in which it is given, rounded up; by default 1."""


class EnvSource(StrictModel):
    """Source of a variable's value."""

    model_config = rules(_ONE_SOURCE.rule)

    secret_key_ref: EnvSecretKeyRef | None = None
    """A key of a Secret; engines are restarted, one after the other, when it changes."""

    config_map_key_ref: ConfigMapKeyRef | None = None
    """A key of a ConfigMap, as it is when an engine starts."""

    field_ref: FieldRef | None = None
    """A field of the pod."""

    resource_field_ref: ResourceFieldRef | None = None
    """An amount of the container's resources."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ONE_SOURCE.check(self)
        return self


class EnvVar(StrictModel):
    """One environment variable of the engine."""

    model_config = rules(
        rule(f"!(self.name in {_RESERVED})", "this variable is set by Kvasir; remove it"),
        rule("has(self.value) != has(self.valueFrom)", "give either value or valueFrom"),
    )

    name: EnvName
    """The variable's name."""

    value: Text | None = None
    """The variable's value."""

    value_from: EnvSource | None = None
    """Source of the value, on a cluster."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name in RESERVED_ENV:
            raise ValueError(f"{self.name} is set by Kvasir")
        if (self.value is None) == (self.value_from is None):
            raise ValueError(f"{self.name} needs either value or valueFrom")
        return self


class EnvObject(StrictModel):
    """A Secret or ConfigMap in the deployment's namespace."""

    name: ObjectName
    """Its name."""

    optional: bool | None = None
    """Start engines without its variables where it does not exist."""


class EnvFrom(StrictModel):
    """Variables that are the keys of one object."""

    model_config = rules(_ONE_OBJECT.rule)

    prefix: EnvName | None = None
    """Beginning of each variable's name, before the key."""

    secret_ref: EnvObject | None = None
    """A Secret; engines are restarted, one after the other, when it changes."""

    config_map_ref: EnvObject | None = None
    """A ConfigMap, as it is when an engine starts."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ONE_OBJECT.check(self)
        return self


class Environment(StrictModel):
    """Variables of the engine's processes, as in a PodSpec."""

    env: Annotated[
        list[EnvVar],
        Field(
            max_length=64,
            json_schema_extra=list_map("name"),
        ),
    ] = []
    """Environment variables of the engine's processes; they replace those of the same name that
    Kvasir gives a pod, such as HOME and HF_HUB_OFFLINE."""

    env_from: Annotated[list[EnvFrom], Field(max_length=16)] = []
    """Secrets and ConfigMaps whose keys are variables, on a cluster; env and what Kvasir sets count
    more."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [variable.name for variable in self.env]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"env names {', '.join(sorted(twice))} more than once")
        return self

    def secrets(self, *, required: bool = False) -> set[str]:
        """Return the names of all Secrets in it, or of those alone that must exist."""
        keys = [it.value_from.secret_key_ref for it in self.env if it.value_from is not None]
        found = [*keys, *(each.secret_ref for each in self.env_from)]
        return {it.name for it in found if it is not None and not (required and it.optional)}
