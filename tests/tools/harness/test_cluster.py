from __future__ import annotations

from pathlib import Path

import pytest

from harness import cluster, leftovers
from harness.errors import HarnessError


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(HarnessError, match="nodes need root: run as root, or use `make kind-up`"):
        cluster.cluster_up(2, print)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(cluster, "TOOLS", ("sh", "no-such-tool", "nor-this"))
    with pytest.raises(HarnessError, match="no-such-tool, nor-this missing: run e2e/cluster/pack"):
        cluster.cluster_up(2, print)


def test_what_is_left_of_a_cluster_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_directory = tmp_path / "kvasir" / "cluster" / "run"
    run_directory.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(leftovers, "_mounts", lambda under: [f"{under}/pods/a"])
    monkeypatch.setattr("harness.network.links", lambda: ["kvasir0"])
    monkeypatch.setattr("harness.cgroups.left", lambda: [tmp_path / "kvasir-n1"])
    assert leftovers.leftovers() == [
        f"mount {tmp_path}/kvasir/cluster/pods/a",
        "mount /var/lib/kubelet/pods/a",
        "network link kvasir0",
        f"cgroup {tmp_path}/kvasir-n1",
        f"directory {run_directory}",
    ]
