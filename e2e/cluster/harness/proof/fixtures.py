"""pytest fixtures of suites on a full cluster: `pytest_plugins = ["harness.proof.fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.cluster import Cluster, cluster_up, down_afterwards
from harness.errors import HarnessError
from harness.places import REPOSITORY, run_directory
from harness.proof.model_server import ModelServer, serving

TINY = REPOSITORY / "engine" / "kvasir_engine" / "assets" / "tiny"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two Ready nodes with the images."""
    if run_directory().exists():
        yield Cluster()
        return
    with down_afterwards():
        try:
            started = cluster_up(2, lambda text: print(text, flush=True))
        except HarnessError as error:
            pytest.fail(str(error), pytrace=False)
        yield started


@pytest.fixture(scope="session")
def model_server(cluster: Cluster) -> Iterator[ModelServer]:
    """A hub and a registry, of which all downloads know."""
    with serving(TINY) as server:
        yield server
