"""A node's own part of the cgroup tree, on version 1 (a tree a controller) and version 2."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = (
    *("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"),
    # Version 2 beside version 1: without controllers, but processes have a place there too.
    "unified",
)
UNIFIED = ("cpu", "cpuset", "memory", "pids", "io")


def name_of(node: str) -> str:
    """The node's directory below each root; kubelet's cgroupRoot."""
    return f"kvasir-{node}"


def create(node: str) -> None:
    """Make the node's directories."""
    if _is_unified():
        enabled = " ".join(f"+{controller}" for controller in UNIFIED)
        (ROOT / "cgroup.subtree_control").write_text(enabled)
        directory = ROOT / name_of(node)
        directory.mkdir(exist_ok=True)
        (directory / "cgroup.subtree_control").write_text(enabled)
        return
    for controller in CONTROLLERS:
        if (ROOT / controller).is_dir():
            (ROOT / controller / name_of(node)).mkdir(exist_ok=True)
    # A new cpuset is empty, and nothing can be put into it before it has CPUs and memory.
    for setting in ("cpuset.cpus", "cpuset.mems"):
        text = (ROOT / "cpuset" / setting).read_text()
        (ROOT / "cpuset" / name_of(node) / setting).write_text(text)


def remove(node: str) -> None:
    """Remove the node's directories once its processes are gone. Leftovers of pods would keep the
    next kubelet of this name waiting for 25 s."""
    for directory in (root / name_of(node) for root in _roots()):
        for _ in range(50):
            if not directory.exists():
                break
            for child in sorted(directory.rglob("*/"), reverse=True):
                with suppress(OSError):
                    child.rmdir()
            with suppress(OSError):
                directory.rmdir()
            time.sleep(0.05)


def remove_all() -> None:
    """Remove what any node left."""
    prefix = name_of("")
    for node in {path.name for path in left()}:
        remove(node.removeprefix(prefix))


def left() -> list[Path]:
    """The directories of any node that are there."""
    return [path for root in _roots() for path in root.glob(f"{name_of('')}*")]


def _roots() -> list[Path]:
    return [ROOT] if _is_unified() else [ROOT / controller for controller in CONTROLLERS]


def _is_unified() -> bool:
    return (ROOT / "cgroup.controllers").exists()
