"""The LLMDeployment resource: what a user writes, with its bounds.

A field is here when it works; a field that would do nothing is refused as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from kvasir.resource.engine_spec import EngineConfig
from kvasir.resource.field_types import DNSLabel, LabelKey, LabelValue, Text
from kvasir.resource.ownership.name_claims import served_names
from kvasir.resource.spec import Spec
from kvasir.resource.strict_model import StrictModel, read_known

__all__ = ["API_VERSION", "KIND", "EngineConfig", "LLMDeployment", "Metadata", "Spec"]

API_VERSION = "kvasir.dev/v1alpha1"
KIND = "LLMDeployment"


class Metadata(StrictModel):
    """The resource's name, and on a cluster its namespace, labels and annotations."""

    name: DNSLabel
    """Name of the deployment: a DNS label, unique in its namespace or file."""

    namespace: DNSLabel | None = None
    """Namespace, on a cluster."""

    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = {}
    """Labels, on a cluster."""

    annotations: Annotated[dict[LabelKey, Text], Field(max_length=64)] = {}
    """Annotations, on a cluster."""


class LLMDeployment(StrictModel):
    """A model served by a number of engine replicas."""

    api_version: Literal["kvasir.dev/v1alpha1"]
    """The version of this schema."""

    kind: Literal["LLMDeployment"]
    """The kind of this resource."""

    metadata: Metadata
    """The resource's name."""

    spec: Spec
    """The wanted state."""

    _unknown: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = self.claimed_names
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            by = "spec.model or spec.adapters" if self.spec.adapters else "spec.model"
            raise ValueError(f"{by} serves {', '.join(sorted(twice))} more than once")
        return self

    @classmethod
    def from_cluster(cls, resource: Mapping[str, Any]) -> Self:
        """The resource as an API server gives it, without what the server adds.

        Fields that this version does not know, since a newer CustomResourceDefinition has them,
        are left out and named in `unknown_fields`. Raises pydantic.ValidationError for a resource
        that is wrong in any other way.
        """
        metadata = resource["metadata"]
        content: dict[str, Any] = {
            "apiVersion": resource["apiVersion"],
            "kind": resource["kind"],
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "spec": resource["spec"],
        }
        found, unknown = read_known(cls, content)
        found._unknown = unknown
        return found

    @property
    def unknown_fields(self) -> tuple[str, ...]:
        """Paths of stored fields that this version does not know, such as spec.router.sticky."""
        return self._unknown

    @property
    def name(self) -> str:
        """The deployment's name."""
        return self.metadata.name

    @property
    def served_names(self) -> list[str]:
        """Names that clients may use: the model's name first, then its aliases."""
        return served_names(self.name, self.spec.model.name, self.spec.model.aliases)

    @property
    def claimed_names(self) -> list[str]:
        """Names that nobody else may serve: the served ones, then those of its LoRA adapters."""
        return [*self.served_names, *(each.name for each in self.spec.adapters or ())]
