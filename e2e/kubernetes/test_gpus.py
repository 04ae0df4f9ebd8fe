"""GPUs as the scheduler and a device plugin have them: too many are refused with the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.cluster import Cluster
from harness.node import GPUS
from harness.proof.deployment import Deployment
from harness.proof.release import Release

IMAGE = "localhost/kvasir/engine-sim:dev"


@pytest.fixture
def wide(cluster: Cluster, release: Release) -> Iterator[Deployment]:
    """Yield a deployment that is not there yet. Its image has no torch: whatever gets GPUs ends at
    once."""
    namespace = cluster.control_plane.namespace("gpus")
    yield Deployment(cluster.kubectl, namespace, "wide")
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def spec(gpus: int) -> dict[str, Any]:
    """Return the spec of a deployment whose replicas take so many GPUs."""
    return {
        "model": {"uri": "builtin://kvasir-tiny"},
        "engine": {"image": IMAGE},
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
        "parallelism": {"tensor": gpus},
    }


def test_more_gpus_than_a_node_has_and_an_engine_that_cannot_use_them(wide: Deployment) -> None:
    wide.apply(spec(2 * GPUS))

    def reason(wanted: str) -> bool:
        return bool(wide.condition("Ready").get("reason") == wanted)

    wide.wait(lambda: reason("InsufficientGPUs"), "the word on GPUs")
    message = wide.condition("Ready")["message"]
    assert "2 Insufficient nvidia.com/gpu" in message
    assert message.endswith(
        f" A replica asks for {2 * GPUS} GPUs; of the nodes that it may run on the largest has"
        f" {GPUS}."
    )
    assert wide.get()["status"]["phase"] == "Pending"

    wide.apply(spec(GPUS))
    wide.wait(lambda: reason("Crashing"), "the engine's last words")
    (pod,) = (each for each in wide.pods() if each["spec"].get("nodeName"))
    message = wide.condition("Ready")["message"]
    assert f"Pod {pod['metadata']['name']} crashed" in message
    print(message)
    assert "torch" in message
