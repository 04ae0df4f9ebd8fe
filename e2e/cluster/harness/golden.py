"""A containerd root with every image in it, imported once; nodes get links to it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.commands import run, wait_for
from harness.places import cache
from harness.processes import ProcessTable

CONFIG = """version = 2
root = "{root}"
state = "{directory}/state"
oom_score = 0
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{socket}"
"""


def prepare(archives: list[Path]) -> Path:
    """The containerd root that has the images of `archives`.

    What it had before is kept, so that only layers that changed are unpacked; begun anew after an
    import that was interrupted.
    """
    directory = cache() / "golden"
    root, imported = directory / "containerd", directory / "imported"
    wanted = [archive.name for archive in archives]
    known = imported.read_text().split() if imported.exists() else []
    if set(wanted) <= set(known):
        return root
    if not known:
        shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    imported.unlink(missing_ok=True)
    with _containerd(directory, root) as socket:
        for archive in archives:
            if archive.name not in known:
                run("ctr", "-a", socket, "-n", "k8s.io", "images", "import", archive)
    imported.write_text("\n".join(wanted))
    return root


@contextmanager
def _containerd(directory: Path, root: Path) -> Iterator[Path]:
    """A containerd that only imports; gives its socket."""
    socket = directory / "state" / "containerd.sock"
    config = directory / "containerd.toml"
    config.write_text(CONFIG.format(root=root, directory=directory, socket=socket))
    processes = ProcessTable(directory)
    processes.spawn("containerd", "containerd", "--config", config)
    try:
        wait_for("containerd", socket.exists, 60)
        yield socket
    finally:
        processes.kill_all()
        shutil.rmtree(directory / "state", ignore_errors=True)
