"""Output of the charts, as it was read and accepted once: snapshots/.

After an intended change: KVASIR_ACCEPT_SNAPSHOTS=1 pytest tests/tools/chart, and read the diff.
"""

import os
from pathlib import Path

import pytest
import yaml

SNAPSHOTS = Path(__file__).parent / "snapshots"


def text_of(objects) -> str:
    """Sorted, without what is random or compared elsewhere."""
    kept = []
    for each in objects:
        if each["kind"] == "CustomResourceDefinition":
            each = each | {"spec": "as charts/kvasir/files/crds"}
        if each["kind"] == "Secret":
            each = each | {"data": dict.fromkeys(each["data"], "random")}
        if each["metadata"]["name"].startswith("kvasir-dashboard"):
            each = each | {"data": dict.fromkeys(each["data"], "as charts/kvasir/files")}
        if each["kind"] == "PrometheusRule":
            each = each | {"spec": "as charts/kvasir/files/rules.yaml"}
        kept.append(each)
    kept.sort(
        key=lambda it: (it["kind"], it["metadata"].get("namespace", ""), it["metadata"]["name"])
    )
    return yaml.safe_dump_all(kept, sort_keys=False, width=100)


def compare(name: str, text: str) -> None:
    path = SNAPSHOTS / f"{name}.yaml"
    if os.environ.get("KVASIR_ACCEPT_SNAPSHOTS"):
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.slow
def test_the_objects_are_those_that_were_accepted(render, values_name) -> None:
    compare(values_name, text_of(render(values_name)))


def test_models_become_llmdeployments(helm) -> None:
    values = {
        "commonLabels": {"team": "a"},
        "defaults": {
            "monitoring": {"alerts": True, "podMonitor": False},
            "lifecycle": {"drainSeconds": 120},
            "replicas": 3,
        },
        "models": [
            {"name": "tiny", "spec": {"model": {"uri": "builtin://kvasir-tiny"}, "replicas": 2}},
            {
                "name": "llama",
                "namespace": "big",
                "labels": {"tier": "gold"},
                "annotations": {"note": "x"},
                "spec": {
                    "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"},
                    "engine": {"config": {"maxNumBatchedTokens": 1048576}},
                    "lifecycle": {"drainSeconds": 0},
                    "monitoring": {"alerts": False},
                    "replicas": 0,
                },
            },
            {"name": "off", "enabled": False, "spec": {"model": {"uri": "builtin://kvasir-tiny"}}},
        ],
    }
    compare("models", text_of(helm.template(values, "kvasir-models", release="models")))


@pytest.mark.parametrize("chart", ["kvasir", "kvasir-models"])
def test_lint(helm, charts, chart) -> None:
    values = {"global": {"imageRegistry": "registry.example.com"}}
    assert "0 chart(s) failed" in helm("lint", "--strict", charts / chart, values=values)


def test_without_a_registry_it_says_what_to_do(helm, helm_error) -> None:
    with pytest.raises(helm_error, match=r"global\.imageRegistry is empty: .*make images PUSH"):
        helm.template({})


def test_a_release_of_another_name_is_named_after_it(helm) -> None:
    values = {"global": {"imageRegistry": "r"}}
    names = {each["metadata"]["name"] for each in helm.template(values, release="prod")}
    own = {each for each in names if not each.endswith(".kvasir.dev")}
    assert all("prod-kvasir" in name for name in own), own


def test_operator_and_routers_know_kserves_namespaces(helm, find) -> None:
    values = {"global": {"imageRegistry": "r"}, "kserveNamespaces": ["a", "b"]}
    made = helm.template(values)
    for name in ("kvasir-operator", "kvasir-router"):
        (container,) = find(made, "Deployment", name)["spec"]["template"]["spec"]["containers"]
        told = [it for it in container["args"] if it.startswith("--kserve-namespace")]
        assert told == ["--kserve-namespace=a", "--kserve-namespace=b"], name


@pytest.mark.slow
@pytest.mark.parametrize("release", ["kvasir", "a" * 53])
def test_names_have_room_for_what_is_made_of_them(helm, release) -> None:
    for each in helm.template({"global": {"imageRegistry": "r"}}, release=release):
        wide = each["kind"].startswith(("Cluster", "Validating"))
        assert len(each["metadata"]["name"]) <= 63 or wide, each


def test_pods_are_not_replaced_for_a_new_version_of_the_chart_alone(render, find) -> None:
    for name in ("kvasir-operator", "kvasir-router"):
        pod = find(render("defaults"), "Deployment", name)["spec"]["template"]
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & pod["metadata"]["labels"].keys()


def test_everything_names_its_namespace_or_is_the_clusters(render, values_name) -> None:
    for each in render(values_name):
        wide = each["kind"].startswith(("Cluster", "Validating")) or each["kind"] in (
            "CustomResourceDefinition",
            "APIService",
        )
        assert ("namespace" in each["metadata"]) is not wide, each["metadata"]


def test_the_definition_is_the_generated_one_and_stays(render, find, charts) -> None:
    for kind in ("llmdeployments", "llmdeploymentclasses", "modelnames"):
        found = find(render("defaults"), "CustomResourceDefinition", f"{kind}.kvasir.dev")
        assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        made = yaml.safe_load((charts / f"kvasir/files/crds/{kind}.yaml").read_text())
        assert found["spec"] == made["spec"]
