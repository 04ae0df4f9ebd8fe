"""Specs with GPUs by any name and by claims: taken, and refused with what is said."""

from __future__ import annotations

from typing import Any

GPU = "nvidia.com/gpu"


def spec(**more: Any) -> dict[str, Any]:
    return {"model": {"uri": "hf://org/model"}, **more}


GPUS: dict[str, dict[str, Any]] = {
    "mig": spec(resources={"limits": {"nvidia.com/mig-1g.10gb": 1, "memory": "8Gi", "cpu": 2}}),
    "amd": spec(resources={"limits": {"amd.com/gpu": "4"}}, parallelism={"tensor": 4}),
    "another kind with none of the first": spec(
        resources={"limits": {GPU: 0, "gpu.intel.com/xe": 2}}, parallelism={"tensor": 2}
    ),
    "cuda by another name": spec(
        resources={"limits": {"nvidia.com/gpu.shared": 1}}, engine={"config": {"device": "cuda"}}
    ),
    "so many at most": spec(
        resources={"limits": {"amd.com/gpu": 8}}, parallelism={"tensor": "auto"}
    ),
    "device class": spec(
        resources={"gpuClaim": {"deviceClassName": "gpu.nvidia.com", "count": 2}},
        parallelism={"tensor": 2},
    ),
    "claim template": spec(
        resources={"gpuClaim": {"resourceClaimTemplateName": "one"}, "limits": {GPU: 0}},
        engine={"config": {"device": "cuda"}},
    ),
    "profile": spec(profile="h100", engine={"config": {"device": "cuda"}}),
}

REFUSED_GPUS: dict[str, tuple[dict[str, Any], str]] = {
    "mig count": (
        spec(resources={"limits": {"nvidia.com/mig-1g.10gb": "65"}}),
        "write a whole number of GPUs from 0 to 64",
    ),
    "amount of a limit": (
        spec(resources={"limits": {"memory": "much"}}),
        "write a quantity, for example 500m, 4 or 16Gi",
    ),
    "amount of a request": (
        spec(resources={"requests": {"memory": "much"}}),
        "write a quantity, for example 500m, 4 or 16Gi",
    ),
    "hugepages": (
        spec(resources={"limits": {"hugepages-2Mi": "1Gi"}}),
        "limits takes cpu, memory, ephemeral-storage and one resource of GPUs",
    ),
    "two kinds of gpu": (
        spec(resources={"limits": {GPU: 1, "amd.com/gpu": 1}}),
        "limits names two resources of GPUs",
    ),
    "claim and limit": (
        spec(resources={"limits": {GPU: 1}, "gpuClaim": {"deviceClassName": "a"}}),
        "limits and gpuClaim both ask for GPUs; remove one",
    ),
    "two claims": (
        spec(
            resources={
                "gpuClaim": {"deviceClassName": "a", "resourceClaimTemplateName": "b"},
            }
        ),
        "gpuClaim names one thing: give either",
    ),
    "claim and auto": (
        spec(resources={"gpuClaim": {"deviceClassName": "a"}}, parallelism={"tensor": "auto"}),
        "parallelism.tensor auto chooses a number for resources.limits",
    ),
    "claim and tensor": (
        spec(resources={"gpuClaim": {"deviceClassName": "a", "count": 2}}),
        "and parallelism.tensor differ; set both",
    ),
    "mig and tensor": (
        spec(resources={"limits": {"nvidia.com/mig-1g.10gb": 2}}),
        "and parallelism.tensor differ; set both",
    ),
}
