"""Downloads onto static local volumes of two nodes: once for all replicas, resumed, and in vain."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from harness import network
from harness.cluster import Cluster
from harness.commands import wait_for
from harness.places import REPOSITORY
from harness.proof.deployment import Deployment
from harness.proof.line import Line
from harness.proof.model_server import ModelServer
from harness.proof.release import Release

TINY = REPOSITORY / "engine" / "kvasir_engine" / "assets" / "tiny"
SLOW = 300_000
"""Bytes a second: the model takes half a minute, of which the operator tells every five seconds."""
SECONDS = 240
pytestmark = pytest.mark.timeout(900)
SIM = {"config": {"device": "sim"}, "args": ["--speed-profile", "slow"]}
LOCAL = {"pvc": {"size": "1Gi", "storageClassName": "local"}}


@pytest.fixture(scope="module")
def line(cluster: Cluster) -> Iterator[Line]:
    """A store of S3's protocol with the shipped model, as pods reach it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    store = boto3.resource(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    bucket = store.create_bucket(Bucket="models")
    for file in TINY.iterdir():
        bucket.put_object(Key=f"tiny/{file.name}", Body=file.read_bytes())
    made = Line(port, network.HOST)
    yield made
    made.close()
    server.stop()


@pytest.fixture(scope="module")
def volumes(cluster: Cluster) -> Iterator[None]:
    """A local volume on each of the two nodes."""
    places = [cluster.directory / "local" / node.name for node in cluster.nodes]
    for place in places:
        place.mkdir(parents=True)
        cluster.kubectl.apply(json.dumps(_volume(place)))
    yield
    cluster.kubectl("delete", "persistentvolume", *(f"local-{place.name}" for place in places))


def _volume(place: Path) -> dict[str, Any]:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [place.name]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"local-{place.name}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(place)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


@pytest.fixture
def model(
    cluster: Cluster, release: Release, line: Line, volumes: None
) -> Iterator[Callable[..., Deployment]]:
    """model(name, **spec): an LLMDeployment of the model in the store, which may not be Ready."""
    namespace = cluster.control_plane.namespace("cache")
    literals = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ENDPOINT_URL": f"http://{network.HOST}:{line.port}",
    }
    cluster.kubectl(
        *("-n", namespace, "create", "secret", "generic", "store"),
        *(f"--from-literal={name}={value}" for name, value in literals.items()),
    )

    def start(name: str, uri: str = "s3://models/tiny", **spec: Any) -> Deployment:
        deployment = Deployment(cluster.kubectl, namespace, name)
        source: dict[str, Any] = {"uri": uri}
        if uri.startswith("s3://"):
            source["secretRef"] = {"name": "store"}
        deployment.apply({"model": source, "engine": SIM, "cache": LOCAL, **spec})
        return deployment

    yield start
    cluster.kubectl("delete", "namespace", namespace)


def downloads(cluster: Cluster, deployment: Deployment, kind: str = "pods") -> list[dict[str, Any]]:
    """The Jobs or pods that download its model, oldest first."""
    selector = f"kvasir.dev/deployment={deployment.name},kvasir.dev/component=download"
    found = cluster.kubectl.json("-n", deployment.namespace, "get", kind, "-l", selector)
    return sorted(found["items"], key=lambda it: str(it["metadata"]["creationTimestamp"]))


def node_of(cluster: Cluster, claim: dict[str, Any]) -> str:
    """The node that has the volume of a claim."""
    volume = cluster.kubectl.json("get", "persistentvolume", claim["spec"]["volumeName"])
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    return str(term["matchExpressions"][0]["values"][0])


def test_one_download_for_two_replicas_goes_on_where_it_was_killed(
    cluster: Cluster, line: Line, model: Callable[..., Deployment]
) -> None:
    size = (TINY / "model.safetensors").stat().st_size
    line.rate = SLOW
    deployment = model("tiny", replicas=2)

    def cached() -> dict[str, Any]:
        return dict(deployment.get().get("status", {}).get("cache", {}))

    # More than all other files have: some of the weights are there to go on from.
    others = sum(file.stat().st_size for file in TINY.iterdir()) - size
    deployment.wait(lambda: cached().get("bytes", 0) > others, "weights in the status", SECONDS)
    told = cached()
    assert told["phase"] == "downloading"
    assert size < told["totalBytes"] < size + 100_000
    assert told["etaSeconds"] > 0
    assert not deployment.pods(), "engines wait for the model"

    (pod,) = downloads(cluster, deployment)
    (container,) = pod["status"]["containerStatuses"]
    cluster.node(pod["spec"]["nodeName"]).kill_container(container["containerID"])
    line.rate = None
    deployment.wait_ready(2, SECONDS)

    killed, finished = downloads(cluster, deployment)
    assert killed["status"]["phase"] == "Failed"
    assert finished["status"]["phase"] == "Succeeded"
    assert len(downloads(cluster, deployment, "jobs")) == 1
    assert line.reads == 2
    assert len(line.resumed_at) == 1
    assert 0 < line.resumed_at[0] < size
    claim = cluster.kubectl.json("-n", deployment.namespace, "get", "pvc", "tiny-models")
    assert claim["status"]["phase"] == "Bound"
    engines = deployment.pods()
    nodes = {pod["spec"]["nodeName"] for pod in (killed, finished, *engines)}
    assert len(engines) == 2
    assert nodes == {node_of(cluster, claim)}
    print(f"resumed at {line.resumed_at[0]} of {size} bytes")

    # Two that each take more than half of the only node that may have them.
    cpus = int(cluster.kubectl.json("get", "node", next(iter(nodes)))["status"]["capacity"]["cpu"])
    deployment.patch({"resources": {"requests": {"cpu": f"{cpus * 550}m"}}})
    degraded = deployment.wait_condition("Degraded", "True", SECONDS)
    assert degraded["reason"] == "VolumeOnOtherNode"
    assert "use fewer replicas, or a claim with spec.cache.pvc.accessModes" in degraded["message"]
    assert deployment.get()["status"]["phase"] == "Degraded", "the old revision goes on"
    assert line.reads == 2


def test_a_model_that_does_not_exist_is_not_tried_again(
    cluster: Cluster, model: Callable[..., Deployment]
) -> None:
    deployment = model("absent", "s3://models/absent")
    degraded = deployment.wait_condition("Degraded", "True", SECONDS)
    assert degraded["reason"] == "DownloadFailed"
    assert degraded["message"] == (
        "The download failed: s3://models/absent names no objects; check the bucket and the prefix"
        " of the model's URI."
    )
    (job,) = downloads(cluster, deployment, "jobs")
    time.sleep(20)  # the second attempt of a Job would come after 10
    assert [each["metadata"]["uid"] for each in downloads(cluster, deployment, "jobs")] == [
        job["metadata"]["uid"]
    ]
    assert len(downloads(cluster, deployment)) == 1
    assert not deployment.pods()


def test_a_hub_and_a_registry_give_what_they_have_once(
    cluster: Cluster, model_server: ModelServer, model: Callable[..., Deployment]
) -> None:
    """Download onto provisioned volumes, by the environment that the chart gives to downloads."""
    uris = {"hub": "hf://org/tiny", "registry": f"oci://{model_server.host}/org/tiny:v1"}
    provisioned = {"pvc": {"size": "1Gi"}}
    made = [model(name, uri, replicas=2, cache=provisioned) for name, uri in uris.items()]
    for deployment in made:
        deployment.wait_ready(2, SECONDS)
        (pod,) = downloads(cluster, deployment)
        assert pod["status"]["phase"] == "Succeeded"
        claim = ("-n", deployment.namespace, "get", "pvc", f"{deployment.name}-models")
        volume = cluster.kubectl.json(*claim)["spec"]["volumeName"]
        place = cluster.kubectl.json("get", "persistentvolume", volume)["spec"]["hostPath"]["path"]
        (directory,) = (each for each in Path(place).iterdir() if (each / "config.json").exists())
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            assert (directory / name).read_bytes() == model_server.files[name]
    assert model_server.reads_of("model.safetensors") == {"hub": 1, "registry": 1}


def test_a_claim_that_no_volume_is_large_enough_for(model: Callable[..., Deployment]) -> None:
    large = {"pvc": {"size": "5Ti", "storageClassName": "local"}}
    deployment = model("large", cache=large)

    def reason() -> str:
        return str(deployment.condition("ModelCached").get("reason", ""))

    wait_for("the word on the claim", lambda: reason() == "ClaimNotBound", SECONDS, 0.5)
    message = deployment.condition("ModelCached")["message"]
    assert "persistent volumes to bind" in message
