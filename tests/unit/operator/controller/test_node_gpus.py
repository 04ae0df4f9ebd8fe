from __future__ import annotations

from typing import Any

import pytest

from kvasir_operator.controller.node_gpus import hardware_for
from kvasir_operator.plan.observed import Hardware

GIB = 1 << 30


def node(gpus: int, **labels: Any) -> dict[str, Any]:
    names = {"product": "nvidia.com/gpu.product", "memory": "nvidia.com/gpu.memory"}
    names |= {part: f"nvidia.com/gpu.compute.{part}" for part in ("major", "minor")}
    own = {names.get(key, key): str(value) for key, value in labels.items()}
    return {"metadata": {"labels": own}, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}


@pytest.mark.parametrize(
    ("selector", "nodes", "profiles", "found"),
    [
        ({}, [], {}, Hardware(None, 0)),
        ({}, [node(8, memory=81920), node(4, memory=24576)], {}, Hardware(24 * GIB, 8)),
        ({"z": "1"}, [node(8, memory=81920, z=1), node(4, memory=1)], {}, Hardware(80 * GIB, 8)),
        ({}, [node(1, product="NVIDIA-L40S")], {}, Hardware(None, 1)),
        ({}, [node(1, product="Odd")], {"Odd": 7}, Hardware(7, 1)),
        ({}, [node(2)], {"default": 9}, Hardware(9, 2)),
        ({}, None, {"default": 9}, Hardware(9, None)),
        ({"nvidia.com/gpu.product": "A"}, None, {"A": 5, "default": 9}, Hardware(5, None)),
        ({}, None, {}, Hardware(None, None)),
        ({}, [node(1, major=9, minor=0)], {}, Hardware(None, 1, (9, 0))),
        (
            {},
            [node(1, major=9, minor=0), node(1, major=8, minor=6)],
            {},
            Hardware(None, 1, (8, 6)),
        ),
        ({}, [node(1, major=9, minor=0), node(1)], {}, Hardware(None, 1)),
        ({}, [node(1, major="x", minor=0)], {}, Hardware(None, 1)),
    ],
)
def test_the_smallest_gpu_that_a_pod_may_get(
    selector: Any, nodes: Any, profiles: Any, found: Hardware
) -> None:
    assert hardware_for(selector, nodes, profiles) == found


def test_gpus_by_another_resource() -> None:
    it = node(8, memory=81920)
    it["status"]["allocatable"] |= {"nvidia.com/mig-1g.10gb": "7", "amd.com/gpu": "4"}
    it["metadata"]["labels"]["nvidia.com/mig-1g.10gb.memory"] = "9856"
    mig, amd = "nvidia.com/mig-1g.10gb", "amd.com/gpu"
    assert hardware_for({}, [it], {}, mig) == Hardware(9856 << 20, 7)
    assert hardware_for({}, [it], {}, amd) == Hardware(None, 4)
    assert hardware_for({}, [it], {"default": 9}, amd) == Hardware(9, 4)
    assert hardware_for({}, [node(8)], {}, mig) == Hardware(None, 0)
