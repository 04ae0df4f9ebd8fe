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
from support.resource_cases import (
    ACCEPTED,
    CHANGES,
    EXTERNAL_LATER,
    HUB,
    NAMES,
    REFUSED,
    spec,
    upstream,
)

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


def test_every_rule_is_tried() -> None:
    words = [message for _, message in REFUSED.values()]
    words += [message for *_, message in CHANGES.values()]
    words += [*NAMES.values(), EXTERNAL_LATER]
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


@pytest.mark.parametrize(("before", "after"), [(spec(), upstream()), (upstream(), spec())])
async def test_engines_and_servers_of_others_do_not_take_each_others_place(
    cluster: Cluster, namespace: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    name = "e-external" if "external" in before else "e-engines"
    stored = await cluster.create(LLMDEPLOYMENTS, resource(namespace, before, name), "test")
    with pytest.raises(ApiError, match=EXTERNAL_LATER):
        await cluster.replace(LLMDEPLOYMENTS, {**stored, "spec": after}, "test")
    stored["spec"]["fallbacks"] = ["a"]
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
