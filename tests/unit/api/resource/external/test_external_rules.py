"""Specs with more than `spec.external` in files: refused in the words of the API server."""

from __future__ import annotations

from typing import Any

import pytest
from support.resource_cases import REFUSED, upstream

from kvasir.resource import LLMDeployment


def parse(spec: dict[str, Any]) -> LLMDeployment:
    head = {"apiVersion": "kvasir.dev/v1alpha1", "kind": "LLMDeployment"}
    return LLMDeployment.model_validate({**head, "metadata": {"name": "d"}, "spec": spec})


@pytest.mark.parametrize(
    "part", ["engine", "image", "resources", "gpus", "parallelism", "podTemplate", "profile"]
)
def test_refused(part: str) -> None:
    spec, told = REFUSED[f"servers' {part}"]
    with pytest.raises(ValueError) as refusal:
        parse(spec)
    assert told in str(refusal.value)


def test_what_an_api_server_fills_in_is_nothing_said() -> None:
    """Also of an object that was stored when limits had a field for NVIDIA's GPUs."""
    stored = {
        "engine": {"type": "kvasir", "kvCacheDtype": "auto", "config": {"device": "auto"}},
        "resources": {"limits": {"nvidia.com/gpu": 0}, "requests": {}},
        "parallelism": {"tensor": 1},
        "podTemplate": {},
        "lifecycle": {"drainSeconds": 60},
    }
    assert parse({**upstream(), **stored}).spec.external is not None
