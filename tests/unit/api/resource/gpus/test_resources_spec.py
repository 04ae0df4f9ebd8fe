from __future__ import annotations

from typing import Any

import pytest

from kvasir.resource.gpus.resources_spec import ResourceLimits, Resources, gpu_names


@pytest.mark.parametrize(
    ("limits", "gpus", "name"),
    [
        ({}, 0, "nvidia.com/gpu"),
        ({"nvidia.com/gpu": 0}, 0, "nvidia.com/gpu"),
        ({"nvidia.com/gpu": "2"}, 2, "nvidia.com/gpu"),
        ({"nvidia.com/mig-1g.10gb": 1, "memory": "8Gi"}, 1, "nvidia.com/mig-1g.10gb"),
        ({"nvidia.com/gpu": 0, "amd.com/gpu": 4}, 4, "amd.com/gpu"),
    ],
)
def test_gpus_have_any_name(limits: dict[str, Any], gpus: int, name: str) -> None:
    found = ResourceLimits.model_validate(limits)
    assert (found.gpus, found.gpu_resource) == (gpus, name)
    assert list(gpu_names(limits)) == ([name] if gpus else [])
    assert found.amounts == {key: it for key, it in limits.items() if "/" not in key}


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"nvidia.com/gpu": 1, "amd.com/gpu": 1}, "limits names two resources of GPUs"),
        ({"hugepages-2Mi": "1Gi"}, "limits takes cpu, memory, ephemeral-storage and one"),
        ({"a/b/c": 1}, "limits takes cpu, memory, ephemeral-storage and one"),
        ({"nvidia.com/gpu": 65}, "less than or equal to 64"),
        ({"nvidia.com/gpu": "1.5"}, "valid integer"),
        ({f"gpus.example.com/kind-{i}": 0 for i in range(7)}, "names more than 6 resources"),
    ],
)
def test_refused(limits: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as refusal:
        ResourceLimits.model_validate(limits)
    assert told in str(refusal.value)


def test_a_claim_counts_as_gpus() -> None:
    found = Resources.model_validate({"gpuClaim": {"deviceClassName": "mig.example", "count": 2}})
    assert (found.gpus, found.gpu_words) == (2, "mig.example")
    named = Resources.model_validate({"gpuClaim": {"resourceClaimTemplateName": "own"}})
    assert (named.gpus, named.gpu_words) == (1, "claims of own")
