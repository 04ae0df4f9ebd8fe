"""The full cluster, with Kvasir installed by its chart.

A cluster that is up already (`make cluster-up`) is used and left; otherwise one is started, and
taken down at the end. What cannot be had fails the run, it never skips.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cluster import Cluster
from harness.proof.deployment import Deployment
from harness.proof.flows import Recorder
from harness.proof.model_server import ModelServer
from harness.proof.release import Release, small_values
from harness.proof.steps import OTHER_TAG

pytest_plugins = ["harness.proof.fixtures"]
MODEL = "kvasir-tiny"


@pytest.fixture(scope="session")
def values(model_server: ModelServer) -> dict[str, Any]:
    """The chart's values for such a cluster, whose downloads know of the model server."""
    made = small_values()
    made["downloads"]["env"] = {
        "HF_ENDPOINT": f"http://{model_server.host}",
        "KVASIR_HTTP_REGISTRIES": model_server.host,
    }
    return made


@pytest.fixture(scope="session")
def release(cluster: Cluster, values: dict[str, Any]) -> Iterator[Release]:
    """Kvasir, installed; uninstalled at the end."""
    installed = Release(cluster.kubectl)
    began = time.monotonic()
    installed.install(values)
    print(f"\nhelm install --wait: {time.monotonic() - began:.1f} s")
    yield installed
    installed.uninstall()


@pytest.fixture
def deploy(cluster: Cluster, release: Release) -> Iterator[Callable[..., Deployment]]:
    """deploy(name, **spec): an LLMDeployment of the simulated engine, Ready; deleted at the end."""
    namespace = cluster.control_plane.namespace("models")
    made: list[Deployment] = []

    def start(name: str, **spec: Any) -> Deployment:
        deployment = Deployment(cluster.kubectl, namespace, name)
        made.append(deployment)
        deployment.apply(
            {
                "model": {"uri": f"builtin://{MODEL}"},
                "engine": {
                    "config": {"device": "sim", "maxNumSeqs": 128},
                    "args": ["--speed-profile", "slow"],
                },
                **spec,
            }
        )
        deployment.wait_ready()
        return deployment

    yield start
    for deployment in made:
        deployment.delete()
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def recorder(cluster: Cluster, release: Release, tmp_path: Path) -> Iterator[Recorder]:
    """Records flows, from before the test begins."""
    made = Recorder(cluster, tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def other_tag(cluster: Cluster) -> str:
    """The simulated engine's image under a second name, on every node."""
    for node in cluster.nodes:
        if OTHER_TAG not in node.images():
            node.tag_image("localhost/kvasir/engine-sim:dev", OTHER_TAG)
    return OTHER_TAG
