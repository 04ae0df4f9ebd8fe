from __future__ import annotations

import pytest

from kvasir.models.sources.registry_mirrors import MIRRORS, mirrored_name

GIVEN = {MIRRORS: "*=all.example, docker.io=r.example/hub,docker.io/org=r.example:5000/own,broken"}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("docker.io/a/b:1", "r.example/hub/a/b:1"),
        ("docker.io/org/b@sha256:0", "r.example:5000/own/b@sha256:0"),
        ("docker.io/organ/b", "r.example/hub/organ/b"),
        ("ghcr.io/a/b", "all.example/a/b"),
        ("all.example/a/b", "all.example/a/b"),
    ],
)
def test_a_model_lies_at_the_mirror_of_the_longest_source(name: str, found: str) -> None:
    assert mirrored_name(name, GIVEN) == found
    assert mirrored_name(found, GIVEN) == found
    assert mirrored_name(name, {}) == name
