"""`spec.podTemplate`: where pods may run, in the words of a PodSpec."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from kvasir.resource.field_types import LabelKey, LabelValue, ObjectName, Text
from kvasir.resource.strict_model import RULES, StrictModel, rule

_OPEN = WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
Open = Annotated[dict[str, Any], _OPEN]
"""A piece of a PodSpec that the API server checks when the pod's template is made."""

_NOT_FREE = "keys under kvasir.dev/ and app.kubernetes.io/ are set by Kvasir; remove them"
_FREE_KEYS = rule(
    "self.all(key, !key.startsWith('kvasir.dev/') && !key.startsWith('app.kubernetes.io/'))",
    _NOT_FREE,
)


def _free_keys(pairs: dict[str, str]) -> dict[str, str]:
    if any(key.startswith(("kvasir.dev/", "app.kubernetes.io/")) for key in pairs):
        raise ValueError(_NOT_FREE)
    return pairs


FreeLabels = Annotated[
    dict[LabelKey, LabelValue],
    Field(max_length=32, json_schema_extra={RULES: [_FREE_KEYS]}),
    AfterValidator(_free_keys),
]
"""Labels beside Kvasir's own."""

FreeAnnotations = Annotated[
    dict[LabelKey, Text],
    Field(max_length=32, json_schema_extra={RULES: [_FREE_KEYS]}),
    AfterValidator(_free_keys),
]
"""Annotations beside Kvasir's own."""


class Toleration(StrictModel):
    """A taint that pods may run in spite of."""

    key: LabelKey | None = None
    """The taint's key; every one if absent, with operator Exists."""

    operator: Literal["Exists", "Equal"] = "Equal"
    """Comparison with the taint's value; Exists matches every value."""

    value: LabelValue | None = None
    """The taint's value."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; every one if absent."""

    toleration_seconds: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Seconds that a pod stays in spite of a NoExecute taint."""


class Affinity(StrictModel):
    """Rules on nodes and neighbours, as in a PodSpec."""

    node_affinity: Open | None = None
    """Node affinity: the nodes that pods may run on."""

    pod_affinity: Open | None = None
    """Pod affinity: the pods beside which they run."""

    pod_anti_affinity: Open | None = None
    """Pod anti-affinity: the pods away from which they run."""


class PullSecret(StrictModel):
    """A Secret that images are pulled with."""

    name: ObjectName
    """The Secret's name."""


class PodTemplate(StrictModel):
    """Settings of engine and download pods beside Kvasir's own, on a cluster."""

    labels: FreeLabels = {}
    """Further labels."""

    annotations: FreeAnnotations = {}
    """Further annotations."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = {}
    """Labels that a node must have."""

    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    """Taints that pods may run in spite of."""

    affinity: Affinity | None = None
    """Rules on nodes and neighbours."""

    priority_class_name: ObjectName | None = None
    """Priority class of the pods, for the scheduler."""

    runtime_class_name: ObjectName | None = None
    """Container runtime, such as nvidia."""

    scheduler_name: ObjectName | None = None
    """Another scheduler than the cluster's default."""

    image_pull_secrets: Annotated[list[PullSecret], Field(max_length=8)] = []
    """Secrets that images are pulled with, beside the operator's."""
