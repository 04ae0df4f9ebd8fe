"""The full cluster: a control plane, DNS and nodes that run containers, on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import cgroups, golden, images, network
from harness.binaries import binary, build_all
from harness.commands import missing, wait_for
from harness.control_plane import ControlPlane
from harness.errors import HarnessError
from harness.leftovers import leftovers, unmount_image_store
from harness.node import GPUS, Node
from harness.places import SOURCES, run_directory
from harness.volumes import PROVISIONED

PORT = 6443
READY_SECONDS = 180
"""Generous: two nodes are Ready after about 6 s on an idle machine."""
TOOLS = (
    *("containerd", "ctr", "runc", "buildah", "debootstrap", "iptables", "conntrack"),
    *("ip", "openssl", "unshare", "nsenter", "sysctl"),
)


class Cluster:
    """The cluster of this machine; there is one at a time, and anyone (root) may open it."""

    def __init__(self) -> None:
        self.directory = run_directory()
        self.control_plane = ControlPlane(self.directory, host=network.HOST, port=PORT)
        self.kubectl = self.control_plane.kubectl
        self.processes = self.control_plane.processes

    @property
    def nodes(self) -> list[Node]:
        """Return the cluster's nodes, switched on or off, n1 first."""
        made = sorted((self.directory / "nodes").glob("n*"))
        return [self._node(index) for index in range(1, len(made) + 1)]

    def node(self, name: str) -> Node:
        """The node of this name. Raises HarnessError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise HarnessError(f"there is no node {name}")

    def up(self, count: int, say: Callable[[str], None], gpus: int = GPUS) -> None:
        """Build what is missing, start everything; returns when every node is Ready."""
        archives = images.build(images.CLUSTER_IMAGES, say)
        root = golden.prepare(archives)
        say("images are imported")
        network.create_bridge()
        nodes = [self._node(index) for index in range(1, count + 1)]
        for node in nodes:
            node.take_images(root)
        self.control_plane.start()
        say("the API server is ready")
        network.route_services(1)
        for node in nodes:
            self.start_node(node, gpus)
        self.kubectl.apply((SOURCES / "manifests" / "base.yaml").read_text())
        self.control_plane.start_scheduler()
        self._start_dns()
        self.processes.spawn("volumes", sys.executable, "-m", "harness.volumes", env=_python_path())
        for node in nodes:
            self.wait_ready(node)
            say(f"node {node.name} is Ready")

    def start_node(self, node: Node, gpus: int = GPUS) -> None:
        """Switch a node on, for the first time or again."""
        kubeconfig = self.control_plane.authority.path(f"node-{node.name}.kubeconfig")
        if not kubeconfig.exists():
            subject = f"/O=system:nodes/CN=system:node:{node.name}"
            self.control_plane.add_client(f"node-{node.name}", subject)
        if not self.control_plane.authority.path("proxy.kubeconfig").exists():
            self.control_plane.add_client("proxy", "/CN=system:kube-proxy")
        node.start(kubeconfig, max(len(self.nodes), node.index), gpus)

    def wait_ready(self, node: Node, *, ready: bool = True) -> None:
        """Return once the API server says that the node is Ready (or is not)."""

        def condition() -> bool:
            found = self.kubectl.json("get", "nodes", "-l", f"kubernetes.io/hostname={node.name}")
            conditions = {
                condition["type"]: condition["status"]
                for item in found["items"]
                for condition in item["status"]["conditions"]
            }
            return (conditions.get("Ready") == "True") is ready

        wait_for(f"node {node.name} {'' if ready else 'not '}Ready", condition, READY_SECONDS, 0.3)

    def down(self) -> None:
        """End and remove everything. Raises HarnessError when something but caches is left."""
        self.processes.kill_all()
        cgroups.remove_all()
        network.remove()
        for mount_point in ("/var/lib/kubelet", "/var/lib/cni"):
            path = Path(mount_point)
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        shutil.rmtree(PROVISIONED, ignore_errors=True)
        logs = self.directory / "log"
        if logs.exists():
            kept = self.directory.parent / "last-log"
            shutil.rmtree(kept, ignore_errors=True)
            logs.rename(kept)
        shutil.rmtree(self.directory)
        unmount_image_store()
        if left := leftovers():
            raise HarnessError(f"this is left of the cluster: {', '.join(left)}")

    def _node(self, index: int) -> Node:
        return Node(f"n{index}", index, self.directory, self.processes)

    def _start_dns(self) -> None:
        kubeconfig = self.control_plane.add_client("dns", "/CN=kvasir-e2e-dns")
        template = (SOURCES / "manifests" / "Corefile").read_text()
        corefile = self.directory / "Corefile"
        corefile.write_text(
            template.replace("@ADDRESS@", network.HOST).replace("@KUBECONFIG@", str(kubeconfig))
        )
        self.processes.spawn("coredns", binary("coredns"), "-conf", corefile)


def check_machine() -> None:
    """Raise HarnessError, naming the remedy, where this machine cannot run a cluster."""
    if os.geteuid() != 0:
        raise HarnessError("nodes need root: run as root, or use `make kind-up` where Docker is")
    if absent := missing(TOOLS):
        raise HarnessError(f"{', '.join(absent)} missing: run e2e/cluster/packages.sh")


def cluster_up(count: int, say: Callable[[str], None]) -> Cluster:
    """Start the machine's cluster. Raises HarnessError when one is up already."""
    check_machine()
    build_all(say)
    if run_directory().exists():
        raise HarnessError("a cluster is up already, or ended badly: run `make cluster-down`")
    cluster = Cluster()
    try:
        cluster.up(count, say)
    except BaseException:
        cluster.down()
        raise
    return cluster


@contextmanager
def down_afterwards() -> Iterator[None]:
    """Take the cluster down at the end, even if this process is killed. Raises HarnessError when
    something is left of it."""
    with subprocess.Popen(
        [sys.executable, "-m", "harness", "down", "--after-input"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **_python_path()},
    ) as watcher:
        yield
        _, said = watcher.communicate()
    if watcher.returncode:
        raise HarnessError(said.decode())


def _python_path() -> dict[str, str]:
    """Return the environment with the paths of the harness, and of the package that it shares with
    the product."""
    return {"PYTHONPATH": f"{SOURCES}:{SOURCES.parents[1] / 'api'}"}
