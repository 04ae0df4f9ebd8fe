"""Where the model lies that engines read: in the image, on the user's volume, or on the cache's."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.models.cache.layout import claim_and_path, model_directory
from kvasir.resource import labels
from kvasir.resource.cache_spec import DEFAULT_SIZE, Cache
from kvasir.resource.spec import Spec
from kvasir_operator.objects import Object
from kvasir_operator.plan.draft import Draft


@dataclass(frozen=True, slots=True)
class Storage:
    """How engines get at the model."""

    model: str
    """What `kvasir serve` is given: a directory, or a model that is in the image."""
    claim: str | None = None
    """The claim that is mounted; None = no volume."""
    cached: bool = False
    """Whether a download fills the volume, so that it may be written to."""


def storage_of(spec: Spec, name: str) -> Storage:
    """The storage of the model of the deployment called `name`."""
    uri = spec.model.parsed_uri
    if uri.scheme == "builtin":
        return Storage(str(uri))
    if uri.scheme == "file":
        return Storage(uri.name)
    directory = model_directory(uri, spec.model.revision)
    path = f"{labels.MODELS_DIRECTORY}/{directory}".removesuffix("/.")
    if uri.scheme == "pvc":
        return Storage(path, claim_and_path(uri)[0])
    return Storage(path, _cache(spec).pvc.claim_name or f"{name}-models", cached=True)


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
