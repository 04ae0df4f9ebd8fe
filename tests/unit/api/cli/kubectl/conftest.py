"""A cluster with one model, as its operator leaves it."""

from __future__ import annotations

import pytest
from support.recorded_cluster import RecordedCluster
from support.recorded_model import READY, ROUTER, condition, crashing, pod, resource, workload

from kvasir.cli.kubectl.cluster_session import ClusterSession


@pytest.fixture
def recorded() -> RecordedCluster:
    """One model whose engine crashes, and a router."""
    broken = condition("WorkloadReady", "False", "Crashing", "0 of 2 engines are up")
    router = pod("router-1", READY, owner="router", **ROUTER)
    router["metadata"]["namespace"] = "kvasir"
    del router["metadata"]["labels"]["kvasir.dev/deployment"]
    return RecordedCluster(
        llmdeployments=[resource(condition("Accepted"), broken, condition("Ready", "False"))],
        deployments=[workload()],
        pods=[pod("qwen-a", crashing()), pod("qwen-b", {}), router],
    )


@pytest.fixture
def session(recorded: RecordedCluster) -> ClusterSession:
    """The namespace ml of it."""
    return ClusterSession(recorded, "ml")
