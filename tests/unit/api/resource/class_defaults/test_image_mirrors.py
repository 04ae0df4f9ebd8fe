from __future__ import annotations

import pytest

from kvasir.resource.class_defaults.defaults_spec import ImageMirror
from kvasir.resource.class_defaults.image_mirrors import full_name, mirror_pod, mirrored

MIRRORS = [
    ImageMirror(source="*", mirror="all.example:5000"),
    ImageMirror(source="docker.io", mirror="r.example/hub"),
    ImageMirror(source="docker.io/vllm", mirror="r.example/engines"),
]


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("busybox", "docker.io/library/busybox"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("org/x@sha256:0", "docker.io/org/x@sha256:0"),
        ("docker.io/busybox", "docker.io/library/busybox"),
        ("index.docker.io/org/x", "docker.io/org/x"),
        ("localhost/x", "localhost/x"),
        ("registry:5000/x", "registry:5000/x"),
        ("ghcr.io/org/x:1", "ghcr.io/org/x:1"),
    ],
)
def test_names_are_those_of_container_runtimes(image: str, name: str) -> None:
    assert full_name(image) == name


@pytest.mark.parametrize(
    ("image", "found"),
    [
        ("busybox:1", "r.example/hub/library/busybox:1"),
        ("vllm/vllm-openai:v1", "r.example/engines/vllm-openai:v1"),
        ("vllmx/y", "r.example/hub/vllmx/y"),
        ("ghcr.io/org/x@sha256:0", "all.example:5000/org/x@sha256:0"),
        # On a mirror already
        ("r.example/hub/org/x", "r.example/hub/org/x"),
        ("all.example:5000/x", "all.example:5000/x"),
    ],
)
def test_the_longest_source_counts(image: str, found: str) -> None:
    assert mirrored(image, MIRRORS) == found
    assert mirrored(found, MIRRORS) == found


def test_without_a_mirror_an_image_keeps_its_words() -> None:
    assert mirrored("busybox", []) == "busybox"
    assert mirrored("busybox", [ImageMirror(source="ghcr.io", mirror="r.example")]) == "busybox"


def test_every_container_of_a_pod_is_pulled_from_mirrors() -> None:
    pod = {
        "initContainers": [{"name": "i", "image": "busybox"}],
        "containers": [{"name": "engine", "image": "ghcr.io/a/b"}, {"name": "injected"}],
        "nodeSelector": {"a": "b"},
    }
    assert mirror_pod(pod, MIRRORS) == {
        "initContainers": [{"name": "i", "image": "r.example/hub/library/busybox"}],
        "containers": [{"name": "engine", "image": "all.example:5000/a/b"}, {"name": "injected"}],
        "nodeSelector": {"a": "b"},
    }
