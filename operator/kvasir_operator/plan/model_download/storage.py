"""Where the model lies that engines read: in the image, on the user's volume, or on the cache's."""

from __future__ import annotations

from kvasir.resource.cache_spec import DEFAULT_SIZE, Cache
from kvasir.resource.spec import Spec
from kvasir_operator.objects import Object
from kvasir_operator.plan.draft import Draft


def is_tied_to_a_node(claim: Object | None) -> bool:
    """Whether a claim's volume can be mounted on one node only."""
    modes = ((claim or {}).get("spec") or {}).get("accessModes") or []
    return bool(modes) and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes)


def has_own_claim(spec: Spec) -> bool:
    """Whether the user's own claim is the cache; others may keep things there."""
    return _cache(spec).pvc.claim_name is not None


def add_claim(draft: Draft) -> None:
    """The volume claim of the cache, unless the user named one."""
    template, spec = _cache(draft.deployment.spec).pvc, draft.deployment.spec
    if not spec.model.downloaded or has_own_claim(spec):
        return
    content: Object = {
        "accessModes": template.access_modes or ["ReadWriteOnce"],
        "resources": {"requests": {"storage": template.size or DEFAULT_SIZE}},
    }
    if template.storage_class_name is not None:
        content["storageClassName"] = template.storage_class_name
    owned = _cache(spec).retention == "Delete"
    name = f"{draft.name}-models"
    draft.manifests.append(
        draft.child("v1", "PersistentVolumeClaim", name, owned=owned, spec=content)
    )


def _cache(spec: Spec) -> Cache:
    return spec.cache or Cache()
