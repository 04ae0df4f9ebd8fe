from __future__ import annotations

import copy
from typing import Any

import pytest

from kvasir.resource import LLMDeployment
from kvasir.resource.class_defaults.defaults_spec import ClassSettings
from kvasir.resource.class_defaults.inheritance import Inheritance, inherit

GPU = "nvidia.com/gpu"
SETTINGS: dict[str, Any] = {
    "defaults": {"images": {"vllm": "vllm:default", "kvasir": "kvasir:default"}},
    "profiles": [
        {
            "name": "h100",
            "images": {"vllm": "vllm:h100"},
            "resources": {
                "limits": {GPU: 4, "memory": "200Gi"},
                "requests": {"cpu": "8", "memory": "100Gi"},
            },
            "nodeSelector": {"gpu": "h100", "pool": "a"},
            "tolerations": [{"key": GPU, "operator": "Exists"}],
            "runtimeClassName": "nvidia",
        },
        {"name": "small", "resources": {"limits": {GPU: 1}}},
    ],
}


def completed(spec: dict[str, Any], settings: dict[str, Any] = SETTINGS) -> Inheritance:
    before = copy.deepcopy(spec)
    found = inherit(spec, ClassSettings.model_validate(settings), "c")
    assert spec == before, "the resource itself stays as it is"
    return found


def parsed(found: Inheritance) -> LLMDeployment:
    head = {"apiVersion": "kvasir.dev/v1alpha1", "kind": "LLMDeployment"}
    return LLMDeployment.model_validate({**head, "metadata": {"name": "d"}, "spec": found.spec})


def spec(**more: Any) -> dict[str, Any]:
    return {"model": {"uri": "hf://org/model"}, **more}


def sources(found: Inheritance) -> dict[str, tuple[str, str]]:
    return {each.field: (each.value, each.source) for each in found.values}


def test_a_profile_gives_what_is_not_said() -> None:
    found = completed(spec(profile="h100", engine={"type": "vllm"}))
    it = parsed(found).spec
    assert it.profile is None
    assert (it.resources.limits.gpus, it.parallelism.tensor) == (4, 4)
    assert it.engine.image == "vllm:h100"
    assert it.pod_template.node_selector == {"gpu": "h100", "pool": "a"}
    assert it.pod_template.tolerations[0].key == GPU
    assert it.pod_template.runtime_class_name == "nvidia"
    profile = "profile h100"
    assert found.profile == "h100"
    assert sources(found) == {
        "spec.engine.image": ("vllm:h100", profile),
        f"spec.resources.limits[{GPU}]": ("4", profile),
        "spec.parallelism.tensor": ("4", profile),
        "spec.resources.requests[cpu]": ("8", profile),
        "spec.resources.limits[memory]": ("200Gi", profile),
        "spec.resources.requests[memory]": ("100Gi", profile),
        "spec.podTemplate.nodeSelector[gpu]": ("h100", profile),
        "spec.podTemplate.nodeSelector[pool]": ("a", profile),
        "spec.podTemplate.tolerations": (GPU, profile),
        "spec.podTemplate.runtimeClassName": ("nvidia", profile),
    }


def test_what_is_said_counts_more() -> None:
    own = spec(
        profile="h100",
        engine={"type": "vllm", "image": "mine:1"},
        resources={"limits": {GPU: 2, "memory": "64Gi", "cpu": "4"}},
        parallelism={"tensor": 2},
        podTemplate={
            "nodeSelector": {"pool": "b"},
            "tolerations": [{"key": GPU, "operator": "Exists"}],
            "runtimeClassName": "mine",
        },
    )
    found = completed(own)
    assert found.spec["resources"] == own["resources"]
    assert found.spec["podTemplate"]["tolerations"] == own["podTemplate"]["tolerations"]
    assert sources(found) == {"spec.podTemplate.nodeSelector[gpu]": ("h100", "profile h100")}


@pytest.mark.parametrize(
    ("tensor", "gpus", "result"), [(1, "4", 4), (2, "2", 2), ("auto", "4", "auto")]
)
def test_the_number_of_gpus(tensor: Any, gpus: str, result: Any) -> None:
    """An API server fills in 0 GPUs and 1 for tensor: those count as not said."""
    stored = spec(profile="h100", resources={"limits": {GPU: 0}}, parallelism={"tensor": tensor})
    found = completed(stored)
    assert sources(found)[f"spec.resources.limits[{GPU}]"][0] == gpus
    it = parsed(found).spec
    assert it.parallelism.tensor == result
    assert it.resources.limits.gpus == int(gpus)


@pytest.mark.parametrize(
    ("resources", "tensor", "merged"),
    [
        ({"limits": {"amd.com/gpu": 4}}, 1, {"limits": {GPU: 0, "amd.com/gpu": 4}}),
        ({"limits": {"amd.com/gpu": 4}}, 2, {"limits": {GPU: 0, "amd.com/gpu": 2}}),
        (
            {"gpuClaim": {"deviceClassName": "a", "count": 2}},
            1,
            {"limits": {GPU: 0}, "gpuClaim": {"deviceClassName": "a", "count": 2}},
        ),
        (
            {"gpuClaim": {"deviceClassName": "a", "count": 2}},
            4,
            {"limits": {GPU: 0}, "gpuClaim": {"deviceClassName": "a", "count": 4}},
        ),
    ],
)
def test_gpus_of_any_kind(resources: dict[str, Any], tensor: int, merged: dict[str, Any]) -> None:
    stored = spec(profile="x", resources={"limits": {GPU: 0}}, parallelism={"tensor": tensor})
    found = completed(stored, {"profiles": [{"name": "x", "resources": resources}]})
    assert found.spec["resources"] == merged
    assert parsed(found).spec.parallelism.tensor == parsed(found).spec.resources.gpus


@pytest.mark.parametrize(
    "own", [{"limits": {"amd.com/gpu": 1}}, {"gpuClaim": {"deviceClassName": "a"}}]
)
def test_gpus_of_ones_own_are_no_profiles(own: dict[str, Any]) -> None:
    found = completed(spec(profile="small", resources=own))
    assert found.spec["resources"] == own
    assert set(sources(found)) == {"spec.engine.image"}


def test_defaults_are_below_profiles() -> None:
    found = completed(spec(engine={"type": "vllm"}))
    assert sources(found) == {"spec.engine.image": ("vllm:default", "defaults")}
    assert completed(spec(engine={"type": "custom"})).values == ()


@pytest.mark.parametrize(
    ("own", "profile"),
    [
        (spec(), "small"),
        (spec(profile="h100"), "h100"),
        (spec(engine={"config": {"device": "cuda"}}), "small"),
        (spec(engine={"config": {"device": "cpu"}}), ""),
        (spec(engine={"config": {"device": "sim"}}), ""),
        ({"model": {}, "external": {"urls": [{"url": "https://a.example"}]}}, ""),
    ],
)
def test_the_default_profile(own: dict[str, Any], profile: str) -> None:
    found = completed(own, {**SETTINGS, "defaults": {"profile": "small"}})
    assert found.profile == profile
    assert not found.problem


def test_servers_of_others_have_nothing_of_a_class() -> None:
    own = {"model": {}, "external": {"urls": [{"url": "https://a.example"}]}}
    found = completed(own)
    assert (found.spec, found.values) == (own, ())


def test_a_profile_that_does_not_exist() -> None:
    told = "LLMDeploymentClass c has no profile a100; "
    found = completed(spec(profile="a100"))
    assert found.problem == told + "set spec.profile to one of h100, small, or add it to the class."
    assert completed(spec(profile="a100"), {}).problem == (
        told + "remove spec.profile, or add it to the class."
    )


def test_what_no_field_of_an_llmdeployment_stands_for_is_told() -> None:
    found = completed(
        spec(),
        {
            "defaults": {
                "imagePullSecrets": [{"name": "a"}, {"name": "b"}],
                "imageMirrors": [{"source": "docker.io", "mirror": "r.example/hub"}],
                "hubEndpoint": "https://hub.example",
                "caBundle": {"configMapRef": {"name": "corp"}},
                "proxy": {"httpsProxy": "http://proxy:3128", "noProxy": ["10.0.0.0/8", ".corp"]},
            }
        },
    )
    assert sources(found) == {
        "defaults.imagePullSecrets": ("a, b", "defaults"),
        "defaults.imageMirrors[docker.io]": ("r.example/hub", "defaults"),
        "defaults.hubEndpoint": ("https://hub.example", "defaults"),
        "defaults.caBundle": ("ConfigMap corp, key ca.crt", "defaults"),
        "defaults.proxy.httpsProxy": ("http://proxy:3128", "defaults"),
        "defaults.proxy.noProxy": ("10.0.0.0/8,.corp", "defaults"),
    }


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"defaults": {"profile": "x"}}, "defaults.profile is none of profiles"),
        ({"profiles": [{"name": "a"}, {"name": "a"}]}, "profiles has a more than once"),
        ({"defaults": {"proxy": {"noProxy": ["a"]}}}, "proxy names no proxy"),
        ({"defaults": {"proxy": {"httpProxy": "http://me:pw@proxy"}}}, "without user and password"),
        ({"defaults": {"caBundle": {}}}, "caBundle names one object"),
        ({"defaults": {"imageMirrors": [{"source": "a b", "mirror": "c"}]}}, "match pattern"),
    ],
)
def test_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as refusal:
        ClassSettings.model_validate(settings)
    assert told in str(refusal.value)
