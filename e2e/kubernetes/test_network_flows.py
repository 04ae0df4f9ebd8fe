"""Every connection to a pod of ours while a model lives: policies allow all but a stranger's."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

import pytest

from harness import network
from harness.cluster import Cluster
from harness.proof.deployment import Deployment
from harness.proof.flows import STRANGER, Flow, Recorder
from harness.proof.release import Release
from kvasir.resource import labels

_IMAGE = "localhost/kvasir/engine-sim:dev"
pytestmark = pytest.mark.timeout(900)
_ENGINE_PORTS = {labels.HTTP_PORT, labels.GRPC_PORT, labels.EVENTS_PORT}


@pytest.fixture
def silent_store() -> Iterator[str]:
    """The URL of a server that takes connections and says nothing: a download there goes on."""
    with socket.create_server((network.HOST, 0)) as server:
        yield f"http://{network.HOST}:{server.getsockname()[1]}"


def download(cluster: Cluster, release: Release, url: str) -> Deployment:
    """Return a deployment whose model never comes, as long as it is asked for its progress."""
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
    recorder.stop()
    allowed, refused = recorder.verdicts()
    print("allowed:", *sorted(allowed), "refused:", *sorted(refused), sep="\n  ")
    assert refused == {Flow(STRANGER, "engine", labels.HTTP_PORT)}
    needed = {
        *(Flow("router", "engine", port) for port in _ENGINE_PORTS),
        Flow("operator", "router", labels.ROUTER_ADMIN_PORT),
        Flow("operator", "download", labels.HTTP_PORT),
    }
    assert needed <= allowed
    assert {flow.source for flow in allowed if flow.target == "router"} >= {"operator"}
    waits.delete()
    cluster.kubectl("delete", "namespace", waits.namespace, "--wait=false")
