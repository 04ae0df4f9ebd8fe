"""`spec.resources`: what one replica may use, and its GPUs by any name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from kvasir.resource.field_types import GPUCount, ObjectName, Quantity
from kvasir.resource.strict_model import RULES, StrictModel, rule, rules

NVIDIA: str = "nvidia.com/gpu"
"""Resource of NVIDIA's whole GPUs, where no other is named."""

AMOUNTS = ("cpu", "memory", "ephemeral-storage")
"""Resources that are no GPUs."""

_NAME = re.compile(
    r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_CEL_NAME = (
    "^(cpu|memory|ephemeral-storage"
    "|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$"
)
_UNKNOWN = (
    "limits takes cpu, memory, ephemeral-storage and one resource of GPUs, such as nvidia.com/gpu;"
    " put others into template"
)
_TWO_KINDS = (
    "limits names two resources of GPUs; keep the one that engines compute on, and put the other"
    " into template"
)
_NO_COUNT = "write a whole number of GPUs from 0 to 64"
_NO_AMOUNT = "write a quantity, for example 500m, 4 or 16Gi"
_MAX_LIMITS = 6
"""Of one map. By it Kubernetes 1.32 estimates what rules cost: 8 would be more than it allows."""
_TOO_MANY = f"limits names more than {_MAX_LIMITS} resources; remove GPUs of which it asks for 0"
_ONE_SOURCE = "gpuClaim names one thing: give either deviceClassName or resourceClaimTemplateName"
_TWICE = "limits and gpuClaim both ask for GPUs; remove one"


class ResourceLimits(StrictModel):
    """Maximum resources that one replica may use, and GPUs by the name of their resource."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, GPUCount] = Field(init=False)

    cpu: Quantity | None = None
    """CPU cores, on a cluster."""

    memory: Quantity | None = None
    """Main memory, on a cluster, with what lies in /dev/shm."""

    ephemeral_storage: Quantity | None = Field(alias="ephemeral-storage", default=None)
    """Space on the node's disk, on a cluster: logs, /tmp and a cache that has no volume."""

    _rules: ClassVar[tuple[dict[str, str], ...]] = (
        rule(f"self.all(it, it.matches('{_CEL_NAME}'))", _UNKNOWN),
        rule(
            "self.filter(it, it.contains('/') && string(self[it]) != '0').size() <= 1", _TWO_KINDS
        ),
        rule(
            "self.all(it, !it.contains('/') || (string(self[it]).matches('^[0-9]{1,2}$')"
            " && int(string(self[it])) <= 64))",
            _NO_COUNT,
        ),
        rule(
            "self.all(it, it.contains('/') || (isQuantity(string(self[it]))"
            " && !string(self[it]).startsWith('-')))",
            _NO_AMOUNT,
        ),
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The schema of a map: an API server's has no fields beside free names."""
        amount = {"x-kubernetes-int-or-string": True, "maxLength": 32}
        return {
            "type": "object",
            "maxProperties": _MAX_LIMITS,
            "additionalProperties": amount,
            RULES: list(cls._rules),
        }

    @property
    def amounts(self) -> dict[str, str]:
        """Amounts of what is no GPU."""
        return self.model_dump(by_alias=True, exclude_none=True, include=set(_FIELDS))

    @property
    def gpus(self) -> int:
        """GPUs of each replica."""
        return sum(self._counts().values())

    @property
    def gpu_resource(self) -> str:
        """Resource that its GPUs are; nvidia.com/gpu if it asks for none by another name."""
        return next(iter(self._counts() or self._extra()), NVIDIA)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and len(given) > _MAX_LIMITS:
            raise ValueError(_TOO_MANY)
        for name in given if isinstance(given, Mapping) else ():
            if name not in AMOUNTS and not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise ValueError(f"{str(name)[:80]!r} is no GPU: {_UNKNOWN}")
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self._counts()) > 1:
            raise ValueError(_TWO_KINDS)
        return self

    def _extra(self) -> dict[str, int]:
        return dict(self.__pydantic_extra__ or {})

    def _counts(self) -> dict[str, int]:
        return {name: count for name, count in self._extra().items() if count}


_FIELDS = ("cpu", "memory", "ephemeral_storage")


class ResourceRequests(StrictModel):
    """Resources that are set aside for one replica."""

    cpu: Quantity | None = None
    """CPU cores, on a cluster; one if no limit is given either (250m with device sim)."""

    memory: Quantity | None = None
    """Main memory, on a cluster."""

    ephemeral_storage: Quantity | None = Field(alias="ephemeral-storage", default=None)
    """Space on the node's disk, on a cluster."""


class GPUClaim(StrictModel):
    """GPUs by dynamic resource allocation (resource.k8s.io), in the place of a limit: each pod gets
    a ResourceClaim of its own."""

    model_config = rules(
        rule("has(self.deviceClassName) != has(self.resourceClaimTemplateName)", _ONE_SOURCE)
    )

    device_class_name: ObjectName | None = None
    """DeviceClass of the GPUs, such as gpu.nvidia.com or mig.nvidia.com; a ResourceClaimTemplate
    for `count` of them is made."""

    resource_claim_template_name: ObjectName | None = None
    """ResourceClaimTemplate in the deployment's namespace, for requests of any kind."""

    count: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs of each replica: those that are asked of the class, or that the template gives."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.device_class_name is None) == (self.resource_claim_template_name is None):
            raise ValueError(_ONE_SOURCE)
        return self


class Resources(StrictModel):
    """Resources that one replica needs."""

    model_config = rules(
        rule(
            "!has(self.gpuClaim) || !has(self.limits)"
            " || !self.limits.exists(it, it.contains('/') && string(self.limits[it]) != '0')",
            _TWICE,
        )
    )

    limits: ResourceLimits = ResourceLimits()
    """Maximum resources that one replica may use. On a cluster cpu (cores), memory (with what lies
    in /dev/shm) and ephemeral-storage (logs, /tmp and a cache that has no volume). GPUs by the name
    of their resource: nvidia.com/gpu, a MIG profile (nvidia.com/mig-1g.10gb), amd.com/gpu or
    another one with a slash. Without GPUs it runs on the CPU."""

    requests: ResourceRequests = ResourceRequests()
    """Resources set aside for one replica; the limits if absent."""

    gpu_claim: GPUClaim | None = None
    """GPUs by dynamic resource allocation, on a cluster."""

    @property
    def gpus(self) -> int:
        """GPUs of each replica, by whatever way."""
        return self.gpu_claim.count if self.gpu_claim is not None else self.limits.gpus

    @property
    def gpu_words(self) -> str:
        """The kind of the GPUs, for people."""
        claim = self.gpu_claim
        if claim is None:
            return self.limits.gpu_resource
        return claim.device_class_name or f"claims of {claim.resource_claim_template_name}"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.gpu_claim is not None and self.limits.gpus:
            raise ValueError(_TWICE)
        return self


def gpu_names(limits: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of GPUs' resources among limits as they were written, without those of
    which there are none."""
    return (name for name, count in limits.items() if "/" in name and str(count) != "0")
