"""Every connection to a pod of ours while a model lives, held against the rendered policies.

The cluster's network enforces none, so each connection is made, recorded, and judged afterwards.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness import network
from harness.cluster import Cluster
from harness.network_policy import End, allows
from harness.node import Node
from harness.proof.deployment import Deployment
from harness.proof.release import Release
from kvasir.llmdeployment import labels

# The second address and port are those of the pod behind a Service's.
_NEW = re.compile(r"src=(\S+) dst=\S+ sport=\d+ dport=\d+ .*?src=(\S+) dst=\S+ sport=(\d+)")
_IMAGE = "localhost/kvasir/engine-sim:dev"
pytestmark = pytest.mark.timeout(900)
_ENGINE_PORTS = {labels.HTTP_PORT, labels.GRPC_PORT, labels.EVENTS_PORT}


class Flow(NamedTuple):
    """A connection by what its ends are: a component, "node", "stranger" or "outside"."""

    source: str
    target: str
    port: int


class Recorder:
    """Reads each node's connection tracking, and remembers whose address each one was."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._logs = [directory / f"{node.name}.flows" for node in cluster.nodes]
        self._ends: dict[str, tuple[End, str]] = {}
        self._stopping = threading.Event()
        self._readers = [
            self._record(node, log) for node, log in zip(cluster.nodes, self._logs, strict=True)
        ]
        self._looking = threading.Thread(target=self._look)
        self._looking.start()

    def stop(self) -> None:
        """Nothing is recorded any more."""
        self._stopping.set()
        self._looking.join()
        for reader in self._readers:
            reader.terminate()
            reader.wait()

    def connections(self) -> set[tuple[str, str, int]]:
        """Source, target and port, each once."""
        found = (_NEW.search(line) for log in self._logs for line in log.read_text().splitlines())
        return {(each[1], each[2], int(each[3])) for each in found if each}

    def end(self, address: str) -> tuple[End, str]:
        """What was at an address, and the word for it."""
        return self._ends.get(address, (End(ip=address), "outside"))

    def _record(self, node: Node, log: Path) -> subprocess.Popen[bytes]:
        process = self._cluster.processes.find(f"node-{node.name}")
        assert process is not None
        inside = ("nsenter", "-t", str(process.pid), "-n", "--")
        with log.open("wb") as file:
            return subprocess.Popen(
                [*inside, "conntrack", "-E", "-e", "NEW", "-p", "tcp"],
                stdout=file,
                stderr=subprocess.DEVNULL,
            )

    def _look(self) -> None:
        for node in self._cluster.nodes:
            for address in (node.address, f"10.244.{node.index}.1"):
                self._ends[address] = End(ip=address), "node"
        while not self._stopping.wait(0.5):
            for pod in self._cluster.kubectl.json("get", "pods", "-A")["items"]:
                address = pod.get("status", {}).get("podIP")
                if address:
                    self._ends[address] = _end(pod, address)


def _end(pod: dict[str, Any], address: str) -> tuple[End, str]:
    metadata, containers = pod["metadata"], pod["spec"]["containers"]
    ports = {
        port["name"]: port["containerPort"] for each in containers for port in each.get("ports", ())
    }
    own = metadata.get("labels", {})
    word = own.get(labels.COMPONENT, "stranger")
    return End(metadata["namespace"], own, address, ports), word


@pytest.fixture
def recorder(cluster: Cluster, release: Release, tmp_path: Path) -> Iterator[Recorder]:
    """At work before the test begins."""
    made = Recorder(cluster, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def silent_store() -> Iterator[str]:
    """The URL of a server that takes connections and says nothing: a download there goes on."""
    with socket.create_server((network.HOST, 0)) as server:
        yield f"http://{network.HOST}:{server.getsockname()[1]}"


def download(cluster: Cluster, release: Release, url: str) -> Deployment:
    """Of a model that never comes, as long as it is asked for its progress."""
    namespace = cluster.control_plane.namespace("flows")
    keys = (f"AWS_ENDPOINT_URL={url}", "AWS_ACCESS_KEY_ID=k", "AWS_SECRET_ACCESS_KEY=s")
    literals = [f"--from-literal={key}" for key in keys]
    cluster.kubectl("-n", namespace, "create", "secret", "generic", "store", *literals)
    deployment = Deployment(cluster.kubectl, namespace, "waits")
    source = {"uri": "s3://models/m", "secretRef": {"name": "store"}}
    deployment.apply({"model": source, "engine": {"config": {"device": "sim"}}})

    def told() -> bool:
        return bool(deployment.get().get("status", {}).get("cache"))

    deployment.wait(told, "the download's progress")
    return deployment


def intrude(cluster: Cluster, namespace: str, address: str) -> None:
    """A pod that has no business there asks an engine; returns when it has an answer."""
    code = f"import urllib.request as u; u.urlopen('http://{address}:{labels.HTTP_PORT}/health')"
    container = {
        "name": "intruder",
        "image": _IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/opt/kvasir/bin/python", "-c", code],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "intruder", "namespace": namespace},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    cluster.kubectl.apply(json.dumps(pod))
    wait = ("wait", "pod/intruder", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
    cluster.kubectl("-n", namespace, *wait)


def test_the_policies_allow_each_flow_of_ours_and_refuse_a_strangers(
    cluster: Cluster,
    release: Release,
    recorder: Recorder,
    deploy: Callable[..., Deployment],
    silent_store: str,
) -> None:
    deployment = deploy("flows", replicas=3)
    assert "Succeeded" in release.test()
    waits = download(cluster, release, silent_store)
    engines = deployment.pods()
    assert {pod["spec"]["nodeName"] for pod in engines} == {"n1", "n2"}, "flows of both kinds"
    intrude(cluster, waits.namespace, engines[0]["status"]["podIP"])
    deployment.patch({"engine": {"args": ["--speed-profile", "slow", "--no-overlap"]}})
    deployment.wait_ready()
    policies = cluster.kubectl.json("get", "networkpolicies", "-A")["items"]
    recorder.stop()

    allowed, refused = set(), set()
    for source_address, target_address, port in recorder.connections():
        (source, from_), (target, to) = recorder.end(source_address), recorder.end(target_address)
        # A pod's own node, with its probes, is let in whatever the policies say.
        if to in ("node", "outside", "stranger") or from_ == "node":
            continue
        verdict = allowed if allows(policies, source, target, port) else refused
        verdict.add(Flow(from_, to, port))
    print("allowed:", *sorted(allowed), "refused:", *sorted(refused), sep="\n  ")
    assert refused == {Flow("stranger", "engine", labels.HTTP_PORT)}
    needed = {
        *(Flow("router", "engine", port) for port in _ENGINE_PORTS),
        Flow("operator", "router", labels.ROUTER_ADMIN_PORT),
        Flow("operator", "download", labels.HTTP_PORT),
    }
    assert needed <= allowed
    assert {flow.source for flow in allowed if flow.target == "router"} >= {"operator"}
    waits.delete()
    cluster.kubectl("delete", "namespace", waits.namespace, "--wait=false")
