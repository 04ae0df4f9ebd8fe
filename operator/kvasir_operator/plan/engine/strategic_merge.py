"""Merge a PodSpec of the user's over the operator's, as Kubernetes' strategic merge patch does.

https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from kvasir.kube.objects import Object

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "hostAliases": "ip",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}
"""Lists whose items are told apart by a field: `patchMergeKey` in Kubernetes' core/v1 types. Every
other list, such as tolerations, replaces the one that was there."""

_REPLACED = ("volumes",)
"""Lists whose items replace those of the same key: a volume has one source. Kubernetes merges them
with `retainKeys`."""


def merge(base: Object, patch: Object) -> Object:
    """Return `base` with `patch` over it; neither changes. A null takes a field out."""
    merged = {name: value for name, value in base.items() if name not in patch}
    for name, value in patch.items():
        if value is not None:
            merged[name] = _merge_field(name, base.get(name), value)
    return merged


def _merge_field(name: str, base: Any, patch: Any) -> Any:
    if isinstance(patch, dict):
        return merge(base if isinstance(base, dict) else {}, patch)
    key = _KEYS.get(name)
    if not isinstance(patch, list) or key is None or not isinstance(base, list):
        return patch
    found: dict[Hashable, Any] = {each.get(key): each for each in base}
    for each in patch:
        before = {} if name in _REPLACED else found.get(each.get(key), {})
        found[each.get(key)] = merge(before, each)
    return list(found.values())
