"""Annotations that keep node autoscalers from taking a pod's node while its engine loads.

Karpenter and cluster-autoscaler consolidate nodes by evicting pods; a model that is minutes from
serving would begin anew on another node. A pod is made with the annotations, and loses them as soon
as it serves, without a restart: from then on budgets decide.
https://karpenter.sh/docs/concepts/disruption/#pod-level-controls
https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvasir.kube.objects import Object, annotation

ANNOTATIONS: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations that Karpenter and cluster-autoscaler heed, with their values."""

MARKER: Final = "kvasir.dev/while-loading"
"""Annotation of a pod: which of them are Kvasir's to remove. A user's own are not."""


def protection(given: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that a pod is made with beside those that its user gives."""
    own = {name: value for name, value in ANNOTATIONS.items() if name not in given}
    return {**own, MARKER: ",".join(own)} if own else {}


def lifted(pod: Object) -> dict[str, None]:
    """Return the change of annotations that ends a pod's protection; empty = it has none."""
    return {name: None for name in _own(pod) if annotation(pod, name)}


def restored(pod: Object) -> dict[str, str]:
    """Return the change of annotations that protects a pod again; empty = it is protected."""
    return {name: ANNOTATIONS[name] for name in _own(pod) if not annotation(pod, name)}


def _own(pod: Object) -> list[str]:
    return [name for name in annotation(pod, MARKER).split(",") if name in ANNOTATIONS]
