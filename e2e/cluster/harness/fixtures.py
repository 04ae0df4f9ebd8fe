"""pytest fixtures of the control-plane tier: `pytest_plugins = ["harness.fixtures"]`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from harness.binaries import binary
from harness.control_plane import ControlPlane
from harness.errors import HarnessError
from harness.processes import guard


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real API server with etcd and controllers, but without nodes: pods stay Pending.

    One for the whole run, so tests take a `namespace()` each and leave cluster-wide objects as they
    found them. Fails, never skips, where the binary is not built.
    """
    try:
        binary("kube")
    except HarnessError as error:
        pytest.fail(str(error), pytrace=False)
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    with guard(plane.directory) as watcher:
        try:
            plane.start()
            yield plane
        finally:
            plane.stop()
            watcher.communicate()
            # Logs stay, for a test that failed; pytest keeps directories of three runs.
            shutil.rmtree(plane.directory / "etcd", ignore_errors=True)
