"""The cluster's network: a bridge of this machine that nodes and control plane are on.

Routes on the host lead to pods and services, so tests reach both as a client in the cluster would.
"""

from __future__ import annotations

import subprocess

from harness.commands import attempt, run
from harness.control_plane import SERVICE_CIDR
from harness.errors import HarnessError

BRIDGE = "kvasir0"
HOST = "10.77.0.1"
"""The host's address on the bridge: API server and DNS."""
NODES = "10.77.0.0/24"
PODS = "10.244.0.0/16"


def node_address(index: int) -> str:
    """The address of the node with this index (1, 2, ...)."""
    return f"10.77.0.{10 + index}"


def pod_cidr(index: int) -> str:
    """The addresses of that node's pods."""
    return f"10.244.{index}.0/24"


def interface(index: int) -> str:
    """The host's end of the node's cable."""
    return f"kvasir-n{index}"


def create_bridge() -> None:
    """Make the bridge. Raises HarnessError where its addresses are in use."""
    taken = subprocess.run(
        ["ip", "-o", "route", "show", "root", NODES], capture_output=True, text=True, check=False
    ).stdout
    if taken:
        raise HarnessError(
            f"{NODES} is routed already ({taken.strip()}); run `make cluster-down`, or free it"
        )
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{HOST}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")


def route_services(index: int) -> None:
    """Send what goes to services through this node's kube-proxy."""
    via = ("via", node_address(index), "dev", BRIDGE, "onlink")
    run("ip", "route", "replace", SERVICE_CIDR, *via)


def plug_in(index: int, pid: int) -> None:
    """Give the network namespace of `pid` an eth0 on the bridge, and route its pods' addresses."""
    cable = interface(index)
    attempt("ip", "link", "delete", cable)
    run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    run("ip", "link", "set", cable, "master", BRIDGE, "up")
    via = ("via", node_address(index), "dev", BRIDGE, "onlink")
    run("ip", "route", "replace", pod_cidr(index), *via)


def links() -> list[str]:
    """Names of the cables and the bridge that are there."""
    printed = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    names = [line.split(": ")[1].partition("@")[0] for line in printed.stdout.splitlines()]
    return [name for name in names if name.startswith("kvasir-n") or name == BRIDGE]


def remove() -> None:
    """Remove bridge and cables; the routes go with them."""
    for name in links():
        attempt("ip", "link", "delete", name)
