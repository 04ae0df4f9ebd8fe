"""The CustomResourceDefinition: as committed, and as a real API server enforces it.

Each CEL rule has a resource that it accepts and one that it refuses, with the rule's own words.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.errors import HarnessError
from kvasir.kube import ApiError, Kind
from kvasir.kube.client import Cluster
from kvasir.kube.config import load_access
from kvasir.resource import LLMDeployment
from kvasir.resource.crd_writer import all_crds, as_yaml, crd
from kvasir.resource.strict_model import RULES

pytestmark = pytest.mark.slow

COMMITTED = Path(__file__).parents[3] / "charts" / "kvasir" / "files" / "crds"
LLMDEPLOYMENTS = Kind("kvasir.dev/v1alpha1", "llmdeployments")
HUB = "hf://org/model"
TINY = "builtin://kvasir-tiny"
GPU = "nvidia.com/gpu"


def schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and all in it."""
    yield schema
    inner = [*schema.get("properties", {}).values(), schema.get("items")]
    for part in [*inner, schema.get("additionalProperties")]:
        if part is not None:
            yield from schemas(part)


def root() -> dict[str, Any]:
    found: dict[str, Any] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def test_the_committed_definitions_are_those_of_the_models() -> None:
    made = {each["spec"]["names"]["plural"]: as_yaml(each) for each in all_crds()}
    committed = {file.stem: file.read_text() for file in COMMITTED.iterdir()}
    assert committed == made, "run `make crd`"


@pytest.mark.parametrize("definition", all_crds(), ids=lambda it: it["spec"]["names"]["plural"])
def test_they_are_structural(definition: dict[str, Any]) -> None:
    for part in schemas(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]):
        assert not {"$ref", "$defs", "anyOf", "oneOf", "title", "const", "nullable"} & part.keys()
        assert "type" in part or "x-kubernetes-int-or-string" in part
        assert not ("properties" in part and "additionalProperties" in part)


def test_every_field_of_spec_and_status_is_explained() -> None:
    for part in ("spec", "status"):
        for schema in schemas(root()["properties"][part]):
            for name, field in schema.get("properties", {}).items():
                assert field.get("description"), name


def test_what_the_models_default_the_definition_does() -> None:
    """A resource that went through the API server means the same as the file it came from."""
    given = {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "m", "namespace": "n"},
        "spec": {"model": {"uri": HUB}},
    }
    stored = {**given, "spec": defaulted(root()["properties"]["spec"], given["spec"])}
    assert stored["spec"]["replicas"] == 1
    assert stored["spec"]["parallelism"] == {"tensor": 1}
    assert LLMDeployment.from_cluster(stored) == LLMDeployment.model_validate(given)


def defaulted(schema: dict[str, Any], value: Any) -> Any:
    """`value` with the defaults of `schema`, as an API server fills them in."""
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    filled = dict(value)
    for name, part in schema["properties"].items():
        if name not in filled and "default" in part:
            filled[name] = copy.deepcopy(part["default"])
        if name in filled:
            filled[name] = defaulted(part, filled[name])
    return filled


def spec(uri: str = HUB, **more: Any) -> dict[str, Any]:
    return {"model": {"uri": uri, **more.pop("model", {})}, **more}


ACCEPTED = {
    "hub": spec("hf://org/model@main"),
    "plain hub id": spec("org/model"),
    "revision": spec(model={"revision": "main"}),
    "the same revision twice": spec("hf://org/model@main", model={"revision": "main"}),
    "secret": spec("s3://bucket/x", model={"secretRef": {"name": "s"}}),
    "names": spec(model={"name": "a", "aliases": ["b", "c"]}),
    "quantisation": spec(model={"quantization": "compressed-tensors"}),
    "flag": spec(engine={"args": ["--no-overlap", "--tokenizer", "x"]}),
    "env": spec(
        engine={
            "env": [
                {"name": "A", "value": "x"},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ]
        }
    ),
    "kv type": spec(engine={"kvCacheDtype": "fp8_e4m3"}),
    "memory": spec(engine={"config": {"kvCacheMemoryBytes": "24Gi"}}),
    "bytes": spec(engine={"config": {"kvCacheMemoryBytes": 1024}}),
    "quantities": spec(resources={"limits": {"cpu": 4, "memory": "16Gi"}}),
    "gpus": spec(resources={"limits": {GPU: "2"}}, parallelism={"tensor": 2}),
    "cuda": spec(resources={"limits": {GPU: 1}}, engine={"config": {"device": "cuda"}}),
    "auto": spec(parallelism={"tensor": "auto"}, engine={"config": {"device": "cuda"}}),
    "sim": spec(TINY, engine={"config": {"device": "sim"}}),
    "sim on gpus": spec(
        TINY,
        engine={"config": {"device": "sim"}},
        resources={"limits": {GPU: 2}},
        parallelism={"tensor": 2},
    ),
    "existing claim": spec(cache={"pvc": {"claimName": "c"}}),
    "new claim": spec(cache={"pvc": {"size": "5Gi", "accessModes": ["ReadWriteMany"]}}),
    "download": spec(
        cache={
            "download": {
                "image": "dl:1",
                "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
                "nodeSelector": {"pool": "cpu"},
                "tolerations": [],
                "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn"}},
                "deadlineSeconds": 3600,
            }
        }
    ),
    "download's account": spec(cache={"download": {"serviceAccount": {"name": "reader"}}}),
    "image's directory": spec("file:///models/x", engine={"image": "registry:5000/own:1"}),
    "volume": spec("pvc://claim/dir"),
    "no surge": spec(rolloutStrategy={"maxSurge": 0, "maxUnavailable": 1}),
    "scaling": spec(autoscaling={"minReplicas": 2, "maxReplicas": 2, "metric": "queue"}),
    "labels": spec(podTemplate={"labels": {"team": "a"}, "annotations": {"a.b/c": "text"}}),
    "affinity": spec(podTemplate={"affinity": {"nodeAffinity": {"anything": [1]}}}),
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({}, "spec.model: Required value"),
    "scheme": (spec("ftp://x"), "uri must be hf://ORG/NAME"),
    "path": (spec("/models/x"), "uri must be hf://ORG/NAME"),
    "revision": (spec(TINY, model={"revision": "x"}), "revision has a meaning only with hf://"),
    "revisions": (spec("hf://a/b@x", model={"revision": "y"}), "revision and the revision in uri"),
    "secret": (spec(TINY, model={"secretRef": {"name": "s"}}), "secretRef is for downloads"),
    "alias": (spec(model={"name": "a", "aliases": ["a"]}), "name is among the aliases too"),
    "own name": (spec(model={"aliases": ["own"]}), "deployment's own name is among the aliases"),
    "aliases": (spec(model={"aliases": ["a", "a"]}), "Duplicate value"),
    "quantisation": (spec(model={"quantization": "int8"}), 'Unsupported value: "int8"'),
    "quantisation's flag": (
        spec(engine={"args": ["--quantization", "fp8"]}),
        "use spec.model.quantization",
    ),
    "flag": (spec(engine={"args": ["--port=1"]}), "--port cannot be an extra argument: it is set"),
    "field's flag": (spec(engine={"args": ["--seed", "1"]}), "use spec.engine.config.seed"),
    "env's name": (
        spec(engine={"env": [{"name": "KVASIR_FLEET_SECRET", "value": "x"}]}),
        "this variable is set by Kvasir",
    ),
    "env's value": (spec(engine={"env": [{"name": "A"}]}), "give either value or valueFrom"),
    "env twice": (
        spec(engine={"env": [{"name": "A", "value": "x"}, {"name": "A", "value": "y"}]}),
        "Duplicate value",
    ),
    "memory": (
        spec(engine={"config": {"kvCacheMemoryBytes": "much"}}),
        "write an amount of memory, for example 24Gi",
    ),
    "kv type": (spec(engine={"kvCacheDtype": "int8"}), 'Unsupported value: "int8"'),
    "kv type by flag": (
        spec(engine={"args": ["--kv-cache-dtype", "fp8"]}),
        "use spec.engine.kvCacheDtype",
    ),
    "no memory": (spec(engine={"config": {"kvCacheMemoryBytes": 0}}), "write an amount of memory"),
    "quantity": (spec(resources={"limits": {"cpu": "-1"}}), "write a quantity, for example"),
    "gpu count": (spec(resources={"limits": {GPU: "many"}}), "write a whole number of GPUs"),
    "tensor": (
        spec(parallelism={"tensor": "some"}),
        "write a number of GPUs from 1 to 64, or auto",
    ),
    "gpus and tensor": (spec(resources={"limits": {GPU: 2}}), "and parallelism.tensor differ"),
    "cuda": (
        spec(engine={"config": {"device": "cuda"}}),
        "engine.config.device cuda needs resources.limits nvidia.com/gpu",
    ),
    "cpu": (
        spec(resources={"limits": {GPU: 1}}, engine={"config": {"device": "cpu"}}),
        "engine.config.device cpu uses no GPU",
    ),
    "sim and auto": (
        spec(parallelism={"tensor": "auto"}, engine={"config": {"device": "sim"}}),
        "parallelism.tensor auto is for device cuda",
    ),
    "auto": (spec(TINY, parallelism={"tensor": "auto"}), "needs a model that is downloaded"),
    "cache": (spec(TINY, cache={}), "cache is for models that are downloaded"),
    "claim": (spec(cache={"pvc": {"claimName": "c", "size": "1Gi"}}), "names an existing claim"),
    "account": (
        spec(cache={"download": {"serviceAccount": {"name": "a", "annotations": {"b.c/d": "e"}}}}),
        "annotations are of the ServiceAccount that is made",
    ),
    "deadline": (spec(cache={"download": {"deadlineSeconds": 5}}), "greater than or equal to 60"),
    "file": (spec("file:///models/x"), "file:// names a directory inside the engine's image"),
    "rollout": (
        spec(rolloutStrategy={"maxSurge": 0}),
        "maxSurge and maxUnavailable cannot both be 0",
    ),
    "scaling": (
        spec(autoscaling={"minReplicas": 3, "maxReplicas": 2}),
        "minReplicas is above maxReplicas",
    ),
    "label": (
        spec(podTemplate={"labels": {"kvasir.dev/x": "y"}}),
        "keys under kvasir.dev/ and app.kubernetes.io/ are set by Kvasir",
    ),
    "policy": (spec(router={"policy": "best"}), "Unsupported value"),
    "addresses": (
        spec(networkPolicy={"egressCidrs": ["192.0.2.1/24"]}),
        "write addresses as a CIDR without host bits",
    ),
    "replicas": (spec(replicas=65), "should be less than or equal to 64"),
}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "shrink": ({"size": "5Gi"}, {"size": "4Gi"}, "a volume cannot shrink"),
    "class": (
        {"storageClassName": "a"},
        {"storageClassName": "b"},
        "storageClassName of an existing volume cannot change",
    ),
    "modes": (
        {"accessModes": ["ReadWriteOnce"]},
        {"accessModes": ["ReadWriteMany"]},
        "accessModes of an existing volume cannot change",
    ),
}
NAMES = {
    "a" * 53: "metadata.name is longer than 52 characters",
    "a.b": "metadata.name must begin with a letter",
    "1a": "metadata.name must begin with a letter",
}


def test_every_rule_is_tried() -> None:
    words = [message for _, message in REFUSED.values()]
    words += [message for *_, message in CHANGES.values()]
    words += NAMES.values()
    for schema in schemas(root()):
        for rule in schema.get(RULES, ()):
            told = rule["message"]
            assert "messageExpression" in rule or any(word in told for word in words), told


@pytest.fixture(scope="session")
def installed(control_plane: Any) -> Any:
    """The control plane, with the definition."""
    control_plane.define(as_yaml())
    return control_plane


@pytest.fixture(scope="module")
def namespace(installed: Any) -> str:
    return str(installed.namespace("crd"))


@pytest.fixture
async def cluster(installed: Any) -> AsyncIterator[Cluster]:
    access = await load_access(environ={"KUBECONFIG": str(installed.kubeconfig)})
    async with Cluster(access, timeout=60) as found:
        yield found


def resource(namespace: str, content: dict[str, Any], name: str = "own") -> dict[str, Any]:
    return {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": content,
    }


@pytest.mark.parametrize("case", ACCEPTED)
async def test_accepted(cluster: Cluster, namespace: str, case: str) -> None:
    body = resource(namespace, ACCEPTED[case], "a-" + case.replace(" ", "-").replace("'", ""))
    stored = await cluster.create(LLMDEPLOYMENTS, body, "test")
    assert LLMDeployment.from_cluster(stored).spec.replicas == 1


@pytest.mark.parametrize("case", REFUSED)
async def test_refused(cluster: Cluster, namespace: str, case: str) -> None:
    content, message = REFUSED[case]
    with pytest.raises(ApiError) as refusal:
        await cluster.create(LLMDEPLOYMENTS, resource(namespace, content), "test")
    assert message in str(refusal.value)


@pytest.mark.parametrize("case", CHANGES)
async def test_changes_that_no_volume_can_follow(
    cluster: Cluster, namespace: str, case: str
) -> None:
    before, after, message = CHANGES[case]
    body = resource(namespace, spec(cache={"pvc": before}), f"c-{case}")
    stored = await cluster.create(LLMDEPLOYMENTS, body, "test")
    stored["spec"]["cache"]["pvc"] = after
    with pytest.raises(ApiError, match=message):
        await cluster.replace(LLMDEPLOYMENTS, stored, "test")
    stored["spec"]["cache"]["pvc"] = before
    stored["spec"]["replicas"] = 2
    await cluster.replace(LLMDEPLOYMENTS, stored, "test")


@pytest.mark.parametrize("name", NAMES)
async def test_names(cluster: Cluster, namespace: str, name: str) -> None:
    with pytest.raises(ApiError, match=NAMES[name]):
        await cluster.create(LLMDEPLOYMENTS, resource(namespace, spec(), name), "test")
    await cluster.create(LLMDEPLOYMENTS, resource(namespace, spec(), "b" * 52), "test")
    await cluster.delete(LLMDEPLOYMENTS, namespace, "b" * 52)


async def test_defaults_are_those_of_the_models(cluster: Cluster, namespace: str) -> None:
    body = resource(namespace, spec(), "defaults")
    stored = await cluster.create(LLMDEPLOYMENTS, body, "test")
    assert stored["spec"] == defaulted(root()["properties"]["spec"], body["spec"])


async def test_status_is_apart_and_scale_goes_both_ways(
    installed: Any, cluster: Cluster, namespace: str
) -> None:
    body = {**resource(namespace, spec(), "s"), "status": {"phase": "Ready"}}
    stored = await cluster.create(LLMDEPLOYMENTS, body, "test")
    assert "status" not in stored
    status = {"replicas": 3, "selector": "a=b", "phase": "Ready"}
    about = {"metadata": body["metadata"], "status": status}
    head = {"apiVersion": "kvasir.dev/v1alpha1", "kind": "LLMDeployment"}
    stored = await cluster.apply(LLMDEPLOYMENTS, {**head, **about}, "test", "status")
    assert stored["metadata"]["generation"] == 1
    kubectl = installed.kubectl
    kubectl("-n", namespace, "scale", "llmd/s", "--replicas=4")
    path = f"/apis/kvasir.dev/v1alpha1/namespaces/{namespace}/llmdeployments/s/scale"
    scale = json.loads(kubectl("get", "--raw", path))
    assert scale["spec"]["replicas"] == 4
    assert scale["status"] == {"replicas": 3, "selector": "a=b"}


def test_kubectl_refuses_what_is_unknown(installed: Any, namespace: str) -> None:
    body = resource(namespace, spec(engine={"config": {"magic": True}}), "unknown")
    with pytest.raises(HarnessError, match="magic"):
        installed.kubectl("create", "-f", "-", input=json.dumps(body))


def test_people_can_read_it(installed: Any, namespace: str) -> None:
    kubectl = installed.kubectl
    told = kubectl("explain", "llmd.spec.model.uri")
    assert "URI of the model's source" in told
    sample = Path(__file__).parents[3] / "manifests" / "tiny.yaml"
    document = yaml.safe_load(sample.read_text())
    document["metadata"]["namespace"] = namespace
    installed.apply(yaml.safe_dump(document))
    header, *_ = kubectl("-n", namespace, "get", "llmd").splitlines()
    assert header.split() == [
        *("NAME", "MODEL", "READY", "PHASE", "SERVING", "REPLICAS", "REASON", "AGE")
    ]


async def test_what_happens_to_a_field_that_is_not_defined(
    cluster: Cluster, installed: Any, namespace: str
) -> None:
    """Refused where a client asks for it, as kubectl does and every server-side apply; else left
    out before it is stored."""
    body = resource(namespace, {**spec(), "sharding": "none"}, "unknown")
    with pytest.raises(HarnessError, match="unknown field"):
        installed.kubectl("create", "--validate=strict", "-f", "-", input=json.dumps(body))
    with pytest.raises(ApiError, match="field not declared in schema"):
        await cluster.apply(LLMDEPLOYMENTS, body, "test")
    stored = await cluster.create(LLMDEPLOYMENTS, body, "test")
    assert "sharding" not in stored["spec"]
