"""Every connection to a pod of ours while something happens, held against the rendered policies.

The cluster's network enforces none, so each connection is made, recorded, and judged afterwards.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.binaries import binary
from harness.cluster import Cluster
from harness.network_policy import End, allows
from harness.node import Node
from kvasir.resource import labels

# The second address and port are those of the pod behind a Service's.
_NEW = re.compile(r"src=(\S+) dst=\S+ sport=\d+ dport=\d+ .*?src=(\S+) dst=\S+ sport=(\d+)")
_LOOK_SECONDS = 0.5
NODE, STRANGER, OUTSIDE = "node", "stranger", "outside"
"""Words for ends that are no component."""

Connection = tuple[str, str, int]
"""Address that it came from, address and port of the pod that it went to."""


class Flow(NamedTuple):
    """A connection by what its ends are: a component, or one of the words above."""

    source: str
    target: str
    port: int


class Verdicts(NamedTuple):
    """Flows to the product's pods, divided by the verdict of the policies."""

    allowed: set[Flow]
    refused: set[Flow]


class Recorder:
    """Read each node's connection tracking, and remember whose address each one was; a node that
    was switched off and on again is read anew."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._ends: dict[str, tuple[End, str]] = {}
        self._readers: dict[str, subprocess.Popen[bytes]] = {}
        self._watch: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._read, self._follow_pods)]
        self._keep_readers()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop recording; may be called twice."""
        self._stopping.set()
        if self._watch is not None:
            self._watch.kill()
        for thread in self._threads:
            thread.join()
        while self._readers:
            _end(self._readers.popitem()[1])

    def verdicts(self) -> Verdicts:
        """Return the verdicts on all that was recorded, by the policies that the cluster has
        now."""
        policies = self._cluster.kubectl.json("get", "networkpolicies", "-A")["items"]
        logs = self._directory.glob("*.flows")
        found = {each for log in logs for each in connections(log.read_text())}
        return judged(found, self._ends, policies)

    def _read(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            self._keep_readers()

    def _keep_readers(self) -> None:
        for node in self._cluster.nodes:
            for address in (node.address, f"10.244.{node.index}.1"):
                self._ends[address] = End(ip=address), NODE
            reader = self._readers.get(node.name)
            process = self._cluster.processes.find(f"node-{node.name}")
            if process is not None and (reader is None or reader.poll() is not None):
                self._readers[node.name] = self._start_reader(node, process.pid)

    def _start_reader(self, node: Node, pid: int) -> subprocess.Popen[bytes]:
        # One of the node's own processes (-p): a power loss must end it too, or it would keep the
        # network of a node that is gone.
        inside = ("nsenter", "-t", str(pid), "-n", "-p", "--")
        with (self._directory / f"{node.name}.flows").open("ab") as file:
            return subprocess.Popen(
                [*inside, "conntrack", "-E", "-e", "NEW", "-p", "tcp"],
                stdout=file,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _follow_pods(self) -> None:
        kubectl = (binary("kube"), "kubectl", "--kubeconfig", self._cluster.kubectl.kubeconfig)
        command = [*map(str, kubectl), "get", "pods", "-A", "--watch", "-o", "json"]
        while not self._stopping.is_set():
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as self._watch:
                if self._stopping.is_set():
                    self._watch.kill()
                assert self._watch.stdout is not None
                for pod in documents(self._watch.stdout):
                    address = pod.get("status", {}).get("podIP")
                    if address:
                        self._ends[address] = end_of(pod, address)
            self._stopping.wait(_LOOK_SECONDS)


def documents(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    """The objects that `kubectl --watch -o json` prints one after the other, indented."""
    text = ""
    for line in lines:
        text += line
        if line == "}\n":
            yield json.loads(text)
            text = ""


def connections(log: str) -> set[Connection]:
    """Return the connections that conntrack reported, each once."""
    found = (_NEW.search(line) for line in log.splitlines())
    return {(each[1], each[2], int(each[3])) for each in found if each}


def end_of(pod: Mapping[str, Any], address: str) -> tuple[End, str]:
    """A pod as policies see it, and the word for it."""
    metadata, containers = pod["metadata"], pod["spec"]["containers"]
    ports = {
        port["name"]: port["containerPort"]
        for each in containers
        for port in each.get("ports", ())
        if "name" in port
    }
    own = metadata.get("labels", {})
    return End(metadata["namespace"], own, address, ports), own.get(labels.COMPONENT, STRANGER)


def judged(
    found: Iterable[Connection],
    ends: Mapping[str, tuple[End, str]],
    policies: list[dict[str, Any]],
) -> Verdicts:
    """Return the verdicts of `policies` on connections between `ends`, by address."""
    verdicts = Verdicts(set(), set())
    for source_address, target_address, port in found:
        source, from_ = ends.get(source_address, (End(ip=source_address), OUTSIDE))
        target, to = ends.get(target_address, (End(ip=target_address), OUTSIDE))
        # A pod's own node, with its probes, is let in whatever the policies say.
        if to in (NODE, OUTSIDE, STRANGER) or from_ == NODE:
            continue
        verdict = allows(policies, source, target, port)
        (verdicts.allowed if verdict else verdicts.refused).add(Flow(from_, to, port))
    return verdicts


def _end(reader: subprocess.Popen[bytes]) -> None:
    """nsenter, and what it has started in the node."""
    if reader.poll() is None:
        os.killpg(reader.pid, signal.SIGTERM)
    reader.wait()
