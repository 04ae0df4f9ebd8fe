"""Values of the class: in the status, in the pods, and what its edits do."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kvasir.resource.class_defaults.defaults_spec import ClassSettings
from kvasir.resource.class_defaults.inheritance import inherit
from kvasir_operator.plan.inherited_values import class_change, restarts_engines

GPU = "nvidia.com/gpu"
BUNDLE = {"configMapRef": {"name": "corp", "key": "root.pem"}}
PROXY = {"httpsProxy": "http://proxy.example:3128", "noProxy": [".corp"]}
SITE: dict[str, Any] = {
    "imagePullSecrets": [{"name": "mirror"}, {"name": "pull"}],
    "imageMirrors": [{"source": "docker.io", "mirror": "r.example/hub"}],
    "hubEndpoint": "https://hub.example",
    "caBundle": BUNDLE,
    "proxy": PROXY,
}
HUB = {"model": {"uri": "hf://org/model"}}
CLAIM = {"metadata": {"name": "m-models", "namespace": "ns", "uid": "c"}, "status": {}}


def given(one: Any, settings: dict[str, Any], **changes: Any) -> Any:
    """The world where the class has these settings."""
    spec = one.observed.resource["spec"]
    found = inherit(spec, ClassSettings.model_validate(settings), "kvasir")
    return one.see(inherited=found, **changes)


def engine(made: Any, make: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    pod = make.manifest(made, "Deployment")["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {it["name"]: it["value"] for it in container["env"] if "value" in it}


def test_engines_and_downloads_have_what_the_site_needs(world: Any, make: Any) -> None:
    one = given(world({**HUB, "model": {"uri": "hf://org/model"}}), {"defaults": SITE})
    job = make.manifest(one.see(claim=CLAIM).plan(), "Job")["spec"]["template"]["spec"]
    done = [{**make.manifest(one.plan(), "Job"), "status": {"conditions": [COMPLETE]}}]
    pod, container = engine(one.see(jobs=tuple(done)).plan(), make)
    volume = {
        "name": "kvasir-ca",
        "configMap": {"name": "corp", "items": [{"key": "root.pem", "path": "ca.crt"}]},
    }
    mount = {"name": "kvasir-ca", "mountPath": "/etc/kvasir/ca", "readOnly": True}
    for each, inside in ((pod, container), (job, job["containers"][0])):
        assert each["imagePullSecrets"] == [{"name": "pull"}, {"name": "mirror"}]
        assert volume in each["volumes"]
        assert mount in inside["volumeMounts"]
        assert inside["image"] == "r.example/hub/library/cpu:1"
        found = variables(inside)
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"):
            assert found[name] == "/etc/kvasir/ca/ca.crt"
        assert found["HTTPS_PROXY"] == found["https_proxy"] == PROXY["httpsProxy"]
        assert "HTTP_PROXY" not in found
        assert found["NO_PROXY"] == found["no_proxy"]
        assert found["NO_PROXY"].split(",") == [
            *("localhost", "127.0.0.1", "::1", ".svc", ".cluster.local", ".corp")
        ]
    assert variables(job["containers"][0])["HF_ENDPOINT"] == "https://hub.example"
    assert "HF_ENDPOINT" not in variables(container)


COMPLETE = {"type": "Complete", "status": "True"}


def test_a_download_from_a_registry_is_told_its_mirrors(world: Any, make: Any) -> None:
    one = given(world({"model": {"uri": "oci://docker.io/org/m"}}), {"defaults": SITE})
    job = make.manifest(one.see(claim=CLAIM).plan(), "Job")["spec"]["template"]["spec"]
    found = variables(job["containers"][0])
    assert found["KVASIR_REGISTRY_MIRRORS"] == "docker.io=r.example/hub"
    assert "HF_ENDPOINT" not in found


def test_a_users_own_variable_counts_more_in_both_spellings(world: Any, make: Any) -> None:
    own = {"env": [{"name": "HTTPS_PROXY", "value": ""}]}
    one = given(
        world({"model": {"uri": "builtin://kvasir-tiny"}, "engine": own}), {"defaults": SITE}
    )
    found = variables(engine(one.plan(), make)[1])
    assert found["HTTPS_PROXY"] == ""
    assert "https_proxy" not in found


def test_another_mirror_of_the_hub_restarts_no_engine(world: Any) -> None:
    one = given(world(), {"defaults": SITE})
    one.step()
    other = {**SITE, "hubEndpoint": "https://other.example"}
    made = given(one, {"defaults": other}).plan()
    assert not restarts_engines(made.manifests, one.observed)
    assert class_change(one.observed.status, made.status, False) == (
        "LLMDeploymentClass kvasir has changed defaults.hubEndpoint: https://hub.example is"
        " https://other.example now. No engine is restarted."
    )


def test_an_edit_that_changes_pods_says_so(world: Any) -> None:
    one = given(world(), {"defaults": SITE})
    one.step()
    made = given(one, {"defaults": {**SITE, "imageMirrors": []}}).plan()
    assert restarts_engines(made.manifests, one.observed)
    told = class_change(one.observed.status, made.status, True)
    assert "imageMirrors[docker.io]: r.example/hub is nothing now" in told
    assert told.endswith("Engines are replaced by the rollout.")


def test_an_edit_of_the_llmdeployment_is_no_event_of_the_class(world: Any) -> None:
    one = given(world(), {"defaults": {"images": {"kvasir": "own:1"}}})
    one.step()
    one.edit({"engine": {"image": "mine:1"}})
    made = given(one, {"defaults": {"images": {"kvasir": "own:1"}}}).plan()
    assert "inherited" not in made.status
    assert class_change(one.observed.status, made.status, True) == ""


def test_the_status_says_where_a_value_comes_from(world: Any, make: Any) -> None:
    profiles = [{"name": "l4", "resources": {"limits": {GPU: 2}}}]
    one = world({"model": {"uri": "builtin://kvasir-tiny"}, "profile": "l4"})
    made = plan_of(given(one, {"profiles": profiles}))
    assert made.status["inherited"] == {
        "profile": "l4",
        "fields": [
            {"field": f"spec.resources.limits[{GPU}]", "value": "2", "source": "profile l4"},
            {"field": "spec.parallelism.tensor", "value": "2", "source": "profile l4"},
        ],
    }
    _, container = engine(made, make)
    assert container["resources"]["limits"][GPU] == "2"
    assert container["image"] == "cuda:1"


def plan_of(one: Any) -> Any:
    made = one.plan()
    assert {it["status"] for it in made.status["conditions"] if it["type"] == "Accepted"} == {
        "True"
    }
    return made


@pytest.mark.parametrize("how", ["gone", "made again"])
def test_engines_stay_when_the_class_no_longer_has_what_it_gave(
    world: Any, make: Any, how: str
) -> None:
    profiles = [{"name": "l4", "resources": {"limits": {GPU: 2}}}]
    own = {"model": {"uri": "builtin://kvasir-tiny"}}
    defaults = {"profile": "l4"} if how == "made again" else {}
    one = world({**own, **({} if defaults else {"profile": "l4"})})
    settings = {"profiles": profiles, "defaults": defaults}
    given(one, settings).step()
    before = copy.deepcopy(one.observed.status["inherited"])
    for _ in range(2):
        made = given(one, {}, class_made_again=how == "made again").step()
        status, reason, message = make.condition(made, "Accepted")
        assert status == "False"
        assert reason == ("ProfileMissing" if how == "gone" else "ClassReplaced")
        assert not [it for it in made.manifests if it["kind"] == "Deployment"]
        assert made.status["inherited"] == before
    if how == "made again":
        assert "spec.parallelism.tensor" in message
        assert "annotation kvasir.dev/made-again" in message
    # What was lost is there again
    made = given(one, settings).plan()
    assert make.condition(made, "Accepted")[0] == "True"
    assert not restarts_engines(made.manifests, one.observed)


def test_a_class_made_again_with_all_that_it_gave_hinders_nothing(world: Any, make: Any) -> None:
    one = given(world(), {"defaults": SITE})
    one.step()
    made = given(one, {"defaults": SITE}, class_made_again=True).plan()
    assert make.condition(made, "Accepted")[0] == "True"


def test_without_its_certificates_nothing_starts(world: Any, make: Any) -> None:
    one = given(world(), {"defaults": SITE}, ca_bundle_problem="ConfigMap 'corp' does not exist")
    made = one.plan()
    assert make.condition(made, "Accepted") == (
        "False",
        "CABundleMissing",
        "ConfigMap 'corp' does not exist in namespace ns, and defaults.caBundle of"
        " LLMDeploymentClass kvasir names it; create it, or change the class.",
    )
    assert made.requeue == 30.0


def test_what_a_class_makes_wrong_is_said_of_the_class(world: Any, make: Any) -> None:
    from kvasir_operator.plan.observed import parse_resource

    spec = {"model": {"uri": "hf://org/m"}, "engine": {"config": {"device": "cpu"}}}
    one = given(
        world({**spec, "profile": "l4"}),
        {"profiles": [{"name": "l4", "resources": {"limits": {GPU: 1}}}]},
    )
    told = parse_resource(one.observed.resource, one.observed.inherited)
    assert told == (
        "With what LLMDeploymentClass kvasir (profile l4) gives: spec: engine.config.device cpu"
        " uses no GPU; remove resources.limits nvidia.com/gpu, or what else asks for GPUs."
    )
