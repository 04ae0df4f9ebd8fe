"""Facts about the GPUs that a deployment's pods may run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvasir.kube.objects import Object
from kvasir.resource.gpus.resources_spec import NVIDIA
from kvasir_operator.plan.observed import Hardware

PRODUCT = "nvidia.com/gpu.product"
CAPABILITY = ("nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor")
"""Labels of NVIDIA's GPU feature discovery, beside RESOURCE.memory, in MiB."""
_DEFAULT = "default"


def hardware_for(
    node_selector: Mapping[str, str],
    nodes: Sequence[Object] | None,
    profiles: Mapping[str, int],
    resource: str = NVIDIA,
) -> Hardware:
    """Return the GPUs of nodes with the labels of `node_selector`, by the resource that they are,
    or without any by `profiles`.

    The smallest and the oldest GPU count, since a pod may get any of them. `nodes` None = they
    cannot be read.
    """
    profile = profiles.get(node_selector.get(PRODUCT, _DEFAULT), profiles.get(_DEFAULT))
    if nodes is None:
        return Hardware(profile, None)
    counts, memories, capabilities = [0], [], []
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        count = _gpus(node, resource)
        if count and all(labels.get(key) == value for key, value in node_selector.items()):
            counts.append(count)
            memories.append(_memory(labels, profiles, resource))
            capabilities.append(_capability(labels))
    known = [memory for memory in memories if memory is not None]
    told = [capability for capability in capabilities if capability is not None]
    oldest = min(told) if told and len(told) == len(capabilities) else None
    return Hardware(min(known) if known else profile, max(counts), oldest)


def _gpus(node: Object, resource: str) -> int:
    amount = str((node.get("status") or {}).get("allocatable", {}).get(resource, "0"))
    return int(amount) if amount.isdigit() else 0


def _capability(labels: Mapping[str, str]) -> tuple[int, int] | None:
    major, minor = (labels.get(name, "") for name in CAPABILITY)
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _memory(labels: Mapping[str, str], profiles: Mapping[str, int], resource: str) -> int | None:
    """Return the memory of one, for which MIG profiles have a label of their own, such as
    nvidia.com/mig-1g.10gb.memory: the whole GPU's says nothing of them."""
    told = labels.get(f"{resource}.memory", "")
    if told.isdigit():
        return int(told) << 20
    return profiles.get(labels.get(f"{resource}.product", labels.get(PRODUCT, "")))
