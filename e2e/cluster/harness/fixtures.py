"""pytest fixtures of the control-plane tier: `pytest_plugins = ["harness.fixtures"]`.

Tests that need a binary which is not built are left out, and the run's last lines say so; with
KVASIR_CLUSTER_TESTS=required, as in CI, they run and fail instead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.binaries import HELM, KUBE, PROMTOOL, DebianProgram, Module, binary
from harness.commands import run
from harness.control_plane import VERSION, ControlPlane
from harness.errors import HarnessError
from harness.processes import guard

NEEDED: dict[str, Module | DebianProgram] = {
    "control_plane": KUBE,
    "helm": HELM,
    "promtool": PROMTOOL,
}
"""Fixtures, with what they run."""
REQUIRED = "KVASIR_CLUSTER_TESTS"
_left_out = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)  # before pytest's own, which selects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a control plane as slow, and take away the tests whose binary is not
    built."""
    for item in items:
        if "control_plane" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
    if version := os.environ.get(VERSION):
        binary(f"apiserver-{version}")  # whoever asks for it wants no test left out
    absent = {name for name, module in NEEDED.items() if not module.is_built()}
    if not absent or os.environ.get(REQUIRED) == "required":
        return
    away = [item for item in items if absent.intersection(getattr(item, "fixturenames", ()))]
    kept = set(items).difference(away)
    items[:] = [item for item in items if item in kept]
    config.hook.pytest_deselected(items=away)
    config.stash[_left_out] = len(away)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = len(away)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a process of pytest-xdist left out: each collects all tests, and one prints."""
    node.config.stash[_left_out] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what was left out."""
    if count := config.stash.get(_left_out, 0):
        terminalreporter.write_line(
            f"{count} tests against a real API server were left out; for them run "
            "`make cluster-build` once (10 minutes) and, as root, e2e/cluster/packages.sh."
        )


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real API server with etcd and controllers, but without nodes: pods stay Pending.

    One for the whole run, so tests take a `namespace()` each and leave cluster-wide objects as they
    found them.
    """
    try:
        binary("kube")
    except HarnessError as error:
        pytest.fail(str(error), pytrace=False)
    with running_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@contextmanager
def running_plane(directory: Path) -> Iterator[ControlPlane]:
    """Run a control plane in `directory`; its logs stay, for a test that failed."""
    plane = ControlPlane(directory)
    with guard(plane.directory) as watcher:
        try:
            plane.start()
            yield plane
        finally:
            plane.stop()
            watcher.communicate()
            shutil.rmtree(plane.directory / "etcd", ignore_errors=True)


@pytest.fixture(scope="session")
def promtool() -> Callable[..., str]:
    """promtool(*arguments): what it prints. Raises HarnessError where it fails, or is absent."""

    def call(*arguments: str | Path) -> str:
        return run("promtool", *arguments, timeout=120)

    return call
