"""Node of the cluster: namespaces, containerd, kubelet, kube-proxy and a device plugin."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from harness import cgroups, network, node_files
from harness.binaries import binary
from harness.commands import run, wait_for
from harness.control_plane import SERVICE_CIDR
from harness.errors import HarnessError
from harness.processes import Process, ProcessTable

INIT = Path(__file__).parent / "node_init.sh"
GPUS = 4


class Node:
    """A node by name and index; its disk is `directory`, which outlives a power loss."""

    def __init__(self, name: str, index: int, cluster: Path, processes: ProcessTable) -> None:
        self.name = name
        self.index = index
        self.address = network.node_address(index)
        self.directory = cluster / "nodes" / name
        self._cluster = cluster
        self._processes = processes

    def start(self, kubeconfig: Path, nodes: int, gpus: int = GPUS) -> None:
        """Switch it on: `nodes` is how many the cluster has. Returns before it is Ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        node_files.write(self.directory, self.name, self.index, self._cluster / "pki")
        cgroups.create(self.name)
        # What is mounted over must be there.
        for mount_point in ("/var/lib/kubelet", "/var/lib/cni"):
            Path(mount_point).mkdir(parents=True, exist_ok=True)
        outer = self._processes.spawn(
            *(f"unshare-{self.name}", "unshare", "--mount", "--pid", "--net", "--uts", "--fork"),
            *("--kill-child", "bash", INIT),
            env=self._environment(kubeconfig, nodes, gpus),
        )
        wait_for(f"the first process of {self.name}", lambda: _children(outer.pid), 30, 0.02)
        first = int(_children(outer.pid)[0])
        self._processes.record(Process.of(f"node-{self.name}", first))
        network.plug_in(self.index, first)

    def power_off(self) -> None:
        """SIGKILL to everything on it at once; the disk stays."""
        for name in (f"node-{self.name}", f"unshare-{self.name}"):
            self._processes.kill(name)
        cgroups.remove(self.name)

    def run(self, *command: str | Path) -> str:
        """Return what `command` printed on the node. Raises HarnessError."""
        process = self._processes.find(f"node-{self.name}")
        if process is None:
            raise HarnessError(f"node {self.name} is switched off")
        inside = ("nsenter", "-t", str(process.pid), "-m", "-n", "-p", "-u", "--")
        return run(*inside, *command)

    def kill_container(self, container_id: str) -> None:
        """SIGKILL to a container's first process; `container_id` as pods state it."""
        container = container_id.removeprefix("containerd://")
        self._ctr("task", "kill", "--signal", "SIGKILL", container)

    def pause_container(self, container_id: str) -> None:
        """Freeze a container, as if it had hung."""
        self._ctr("task", "pause", container_id.removeprefix("containerd://"))

    def resume_container(self, container_id: str) -> None:
        """Let a frozen container go on."""
        self._ctr("task", "resume", container_id.removeprefix("containerd://"))

    def images(self) -> list[str]:
        """Names of the images it has."""
        return self._ctr("images", "list", "-q").split()

    def tag_image(self, image: str, name: str) -> None:
        """Give an image that it has a further name."""
        self._ctr("images", "tag", image, name)

    def import_image(self, archive: Path) -> None:
        """Add the image of a docker-archive."""
        self._ctr("images", "import", str(archive))

    def take_images(self, golden: Path) -> None:
        """Put the prepared containerd root on the disk, unless it has one.

        Blobs and unpacked layers are never written to, so links to them do; databases are copied.
        """
        root = self.directory / "containerd"
        if root.exists():
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        run("cp", "-al", golden, root)
        for database in golden.rglob("*.db"):
            copy = root / database.relative_to(golden)
            copy.unlink()
            shutil.copy2(database, copy)

    def _ctr(self, *arguments: str) -> str:
        socket = "/run/containerd/containerd.sock"
        return self.run("ctr", "--address", socket, "--namespace", "k8s.io", *arguments)

    def _environment(self, kubeconfig: Path, nodes: int, gpus: int) -> Mapping[str, str]:
        others = [index for index in range(1, nodes + 1) if index != self.index]
        routes = [f"{network.pod_cidr(i)} {network.node_address(i)}\n" for i in others]
        return {
            "NODE": self.name,
            "DIRECTORY": str(self.directory),
            "ADDRESS": self.address,
            "HOST_ROUTES": "".join(routes),
            "SERVICE_CIDR": SERVICE_CIDR,
            "KUBECONFIG_FILE": str(kubeconfig),
            "KUBE": str(binary("kube")),
            "FAKEGPU": str(binary("fakegpu")),
            "FAKE_GPUS": str(gpus),
            "LOG": str(self._cluster / "log"),
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }


def _children(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return children.read_text().split() if children.exists() else []
