"""Volume claim of the model cache."""

from __future__ import annotations

from kvasir.kube.objects import Object
from kvasir.resource.cache_spec import DEFAULT_SIZE, Cache
from kvasir.resource.spec import Spec
from kvasir_operator.plan.step import PlanInputs


def is_tied_to_a_node(claim: Object | None) -> bool:
    """Tell if a claim's volume can be mounted on one node only."""
    modes = ((claim or {}).get("spec") or {}).get("accessModes") or []
    return bool(modes) and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes)


def has_own_claim(spec: Spec) -> bool:
    """Tell if the user's own claim is the cache; others may keep things there."""
    return (spec.cache or Cache()).pvc.claim_name is not None


def claim_manifest(inputs: PlanInputs) -> Object:
    """Return the cache's volume claim, which is made unless the user named one."""
    cache = inputs.spec.cache or Cache()
    template = cache.pvc
    content: Object = {
        "accessModes": template.access_modes or ["ReadWriteOnce"],
        "resources": {"requests": {"storage": template.size or DEFAULT_SIZE}},
    }
    if template.storage_class_name is not None:
        content["storageClassName"] = template.storage_class_name
    name, owned = f"{inputs.name}-models", cache.retention == "Delete"
    return inputs.child("v1", "PersistentVolumeClaim", name, owned=owned, spec=content)
