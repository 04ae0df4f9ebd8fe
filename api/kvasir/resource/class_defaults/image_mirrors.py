"""Images at the mirrors of their registries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvasir.models.sources.registry_mirrors import at_mirror
from kvasir.resource.class_defaults.defaults_spec import ImageMirror

_DEFAULT_REGISTRY = "docker.io"
_LIBRARY = "library"


def full_name(image: str) -> str:
    """Return an image's name with its registry, as container runtimes read it: busybox is
    docker.io/library/busybox."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        registry, rest = first, image[len(first) + 1 :]
    else:
        registry, rest = _DEFAULT_REGISTRY, image
    if registry == "index.docker.io":
        registry = _DEFAULT_REGISTRY
    if registry == _DEFAULT_REGISTRY and "/" not in rest:
        rest = f"{_LIBRARY}/{rest}"
    return f"{registry}/{rest}"


def mirrored(image: str, mirrors: Iterable[ImageMirror]) -> str:
    """Return the image at the mirror whose source is the longest that it begins with; one without
    such a mirror, or that lies on a mirror already, as it is."""
    name = full_name(image)
    found = at_mirror(name, [(each.source, each.mirror) for each in mirrors])
    return image if found == name else found


def mirror_pod(pod: Mapping[str, Any], mirrors: Iterable[ImageMirror]) -> dict[str, Any]:
    """Return a PodSpec whose containers have their images from mirrors."""
    mirrors = list(mirrors)
    found = dict(pod)
    for kind in ("initContainers", "containers"):
        if kind in found and mirrors:
            found[kind] = [
                {**each, "image": mirrored(each["image"], mirrors)} if each.get("image") else each
                for each in found[kind]
            ]
    return found
