"""`python -m harness`: build, versions, images, up, down, kubectl."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from harness import images
from harness.binaries import OTHERS, binary, build_all
from harness.cluster import Cluster, cluster_up
from harness.errors import HarnessError
from harness.places import run_directory


def main() -> int:
    """Run one command; 1 and a sentence when it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m harness", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build kube, coredns, helm and pause")
    versions = commands.add_parser("versions", help="build API servers of other versions")
    versions.add_argument("versions", nargs="+", choices=list(OTHERS))
    commands.add_parser("images", help="build the images that a cluster has")
    up = commands.add_parser("up", help="start a cluster")
    up.add_argument("--nodes", type=int, default=2, choices=range(1, 10), metavar="N")
    down = commands.add_parser("down", help="end the cluster and remove what it made")
    down.add_argument(
        "--after-input", action="store_true", help="when standard input ends, not at once"
    )
    commands.add_parser("kubectl", help="kubectl against the cluster", add_help=False)
    # What follows `kubectl` is its own, options and all.
    own = sys.argv[1:2] if sys.argv[1:2] == ["kubectl"] else sys.argv[1:]
    arguments = parser.parse_args(own)
    say = _stopwatch()
    try:
        _run(arguments, say)
    except HarnessError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


def _run(arguments: argparse.Namespace, say: Callable[[str], None]) -> None:
    if arguments.command == "build":
        build_all(say)
        say("binaries are built")
    elif arguments.command == "versions":
        build_all(say, [OTHERS[each] for each in arguments.versions])
        say("API servers are built")
    elif arguments.command == "images":
        images.build(images.CLUSTER_IMAGES, say)
        say("images are built")
    elif arguments.command == "up":
        cluster = cluster_up(arguments.nodes, say)
        say(f"up: export KUBECONFIG={cluster.control_plane.kubeconfig}")
    elif arguments.command == "down":
        if arguments.after_input:
            sys.stdin.buffer.read()
        if run_directory().exists():
            Cluster().down()
        say("down")
    elif not run_directory().exists():
        raise HarnessError("no cluster is up: run `make cluster-up`")
    else:
        kube = str(binary("kube"))
        kubeconfig = str(Cluster().control_plane.kubeconfig)
        os.execv(kube, [kube, "kubectl", "--kubeconfig", kubeconfig, *sys.argv[2:]])


def _stopwatch() -> Callable[[str], None]:
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {text}", flush=True)

    return say


if __name__ == "__main__":
    sys.exit(main())
