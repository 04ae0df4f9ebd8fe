"""Leftovers of a cluster that was taken down, on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness import cgroups, network
from harness.commands import attempt
from harness.places import cache, run_directory


def unmount_image_store() -> None:
    """buildah leaves its store mounted over itself, and layers where a build was interrupted."""
    for mount_point in reversed(_mounts(cache() / "buildah")):
        attempt("umount", mount_point)


def leftovers() -> list[str]:
    """Each thing of it that is still there, in words."""
    mounts = _mounts(cache()) + _mounts(Path("/var/lib/kubelet"))
    return [
        *(f"mount {mount_point}" for mount_point in mounts),
        *(f"network link {link}" for link in network.links()),
        *(f"cgroup {directory}" for directory in cgroups.left()),
        *(f"directory {path}" for path in [run_directory()] if path.exists()),
    ]


def _mounts(under: Path) -> list[str]:
    """Mount points at or below a directory, in the order in which they were mounted."""
    printed = subprocess.run(
        ["findmnt", "--list", "--noheadings", "--output", "TARGET"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [line for line in printed.splitlines() if Path(line).is_relative_to(under)]
