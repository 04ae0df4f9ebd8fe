"""The Job that downloads a model: its arguments, credentials, place and account."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.operators.downloads import HUB, SECRETS, claim, ended, job_pod, removed

from kvasir.models.download.progress import DownloadPhase, Progress
from kvasir_operator.objects import format_time

ZONE = "topology.kubernetes.io/zone"


def job_of(one: Any, make: Any) -> Any:
    return make.manifest(one.plan(), "Job")


def pod_of(one: Any, make: Any) -> Any:
    return job_of(one, make)["spec"]["template"]["spec"]


def test_the_job_has_the_token_and_its_own_image(world: Any, make: Any) -> None:
    one = world(HUB).see(secrets=SECRETS, claim=claim())
    (container,) = pod_of(one, make)["containers"]
    assert container["args"] == [
        *("download", "hf://org/model", "--to", "/models", "--evict", "--progress-port", "8000")
    ]
    token = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert {"name": "HF_TOKEN", "valueFrom": token} in container["env"]
    assert container["image"] == "cpu:1"
    one.settings = replace(make.SETTINGS, images=replace(make.SETTINGS.images, download="dl:1"))
    assert pod_of(one, make)["containers"][0]["image"] == "dl:1"
    one.edit({"cache": {"download": {"image": "mine:1"}}})
    assert pod_of(one, make)["containers"][0]["image"] == "mine:1"


def test_no_gpu_is_asked_for_and_none_is_sought(world: Any, make: Any) -> None:
    where = {
        "nodeSelector": {"gpu": "h200", ZONE: "a", "kubernetes.io/arch": "arm64"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"gpu": "nodes"}},
        "runtimeClassName": "nvidia",
        "priorityClassName": "high",
    }
    spec = {**HUB, "podTemplate": where, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    one = world(spec).see(secrets=SECRETS, claim=claim(["ReadWriteMany"]))
    pod = pod_of(one, make)
    assert pod["nodeSelector"] == {ZONE: "a", "kubernetes.io/arch": "arm64"}
    assert not {"affinity", "runtimeClassName", "priorityClassName"} & set(pod)
    assert "nvidia" not in json.dumps(pod["containers"])
    # They draw it nowhere, and let it reach a volume that an engine has mounted
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    tied = pod_of(one.see(claim=claim()), make)
    assert set(tied["affinity"]) == {"podAffinity"}


def test_its_place_resources_and_time_are_the_users(world: Any, make: Any) -> None:
    own = {
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [
            {"key": "batch", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}
        ],
        "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2", "memory": "4Gi"}},
        "deadlineSeconds": 3600,
    }
    one = world({**HUB, "cache": {"download": own}}).see(secrets=SECRETS, claim=claim())
    job = job_of(one, make)
    pod = job["spec"]["template"]["spec"]
    assert job["spec"]["activeDeadlineSeconds"] == 3600
    assert pod["nodeSelector"] == {"pool": "cpu"}
    assert pod["tolerations"] == own["tolerations"]
    assert pod["containers"][0]["resources"] == own["resources"]
    (container,) = pod_of(world(HUB).see(secrets=SECRETS, claim=claim()), make)["containers"]
    assert container["resources"] == {"requests": {"cpu": "500m", "memory": "512Mi"}}


def test_its_service_account_is_one_that_exists_or_is_made_for_it(world: Any, make: Any) -> None:
    def planned(account: dict[str, Any]) -> Any:
        spec = {
            "model": {"uri": "s3://bucket/m"},
            "cache": {"download": {"serviceAccount": account}},
        }
        return world(spec).see(claim=claim()).plan()

    def accounts(made: Any) -> dict[str, Any]:
        found = [each["metadata"] for each in made.manifests if each["kind"] == "ServiceAccount"]
        return {each["name"]: each.get("annotations", {}) for each in found}

    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/m"}
    made = planned({"annotations": role})
    assert accounts(made) == {"m": {}, "m-download": role}
    pod = make.manifest(made, "Job")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "m-download"
    made = planned({"name": "bucket-reader"})
    assert accounts(made) == {"m": {}}
    pod = make.manifest(made, "Job")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "bucket-reader"


def test_code_is_downloaded_where_it_is_trusted_and_others_volumes_stay_full(
    world: Any, make: Any
) -> None:
    plain = world(HUB).see(secrets=SECRETS, claim=claim())
    trusted = {**HUB["model"], "trustRemoteCode": True}
    shared = {**HUB, "model": trusted, "cache": {"pvc": {"claimName": "shared"}}}
    one = world(shared).see(secrets=SECRETS, claim=claim())
    job = make.manifest(one.plan(), "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"][4:6] == ["--include", "*.py"]
    assert "--evict" not in container["args"]
    assert job["metadata"]["name"] != make.manifest(plain.plan(), "Job")["metadata"]["name"]


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://bucket/model", {"envFrom": [{"secretRef": {"name": "hub"}}]}),
        ("https://host/model", {"name": "KVASIR_HTTP_TOKEN"}),
        ("oci://host/model:1", {"mountPath": "/credentials"}),
    ],
)
def test_each_source_gets_its_secret_in_its_own_form(
    world: Any, make: Any, uri: str, shown: dict[str, Any]
) -> None:
    spec = {"model": {"uri": uri, "secretRef": {"name": "hub"}}}
    one = world(spec).see(secrets=SECRETS, claim=claim())
    (container,) = make.manifest(one.plan(), "Job")["spec"]["template"]["spec"]["containers"]
    places = [container, *container["env"], *container["volumeMounts"]]
    assert any(shown.items() <= place.items() for place in places)


def test_the_operators_variables_are_every_downloads(world: Any, make: Any) -> None:
    """But for what a deployment's own Secret says; other ones are a reason to try again."""
    settings = replace(make.SETTINGS, download_env={"HF_ENDPOINT": "http://hub", "HF_TOKEN": "x"})
    one = world(HUB, settings).see(secrets=SECRETS, claim=claim())
    job = make.manifest(one.plan(), "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    token = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert container["env"] == [
        {"name": "HOME", "value": "/tmp"},
        {"name": "HF_ENDPOINT", "value": "http://hub"},
        {"name": "HF_TOKEN", "valueFrom": token},
    ]
    words = Progress(DownloadPhase.FAILED, error="no hub", permanent=True)
    failed = ended(job, "Failed", format_time(make.NOW))
    pod = job_pod(job["metadata"]["name"], words.termination_message())
    assert not removed(one.see(jobs=(failed,), job_pods=(pod,)).plan())
    one.settings = replace(settings, download_env={"HF_ENDPOINT": "http://another"})
    assert removed(one.plan()) == [job["metadata"]["name"]]


@pytest.mark.parametrize(("key", "taken"), [(None, ".dockerconfigjson"), ("auth", "auth")])
def test_a_registry_gets_a_file_with_its_credentials(
    world: Any, make: Any, key: str | None, taken: str
) -> None:
    secret = {"name": "hub", **({"key": key} if key else {})}
    spec = {"model": {"uri": "oci://host/model:1", "secretRef": secret}}
    pod = pod_of(world(spec).see(secrets=SECRETS, claim=claim()), make)
    (container,) = pod["containers"]
    assert {"name": "REGISTRY_AUTH_FILE", "value": "/credentials/config.json"} in container["env"]
    [mount] = [it for it in container["volumeMounts"] if it["name"] == "credentials"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/credentials", True)
    [volume] = [it for it in pod["volumes"] if it["name"] == "credentials"]
    assert volume["secret"] == {
        "secretName": "hub",
        "items": [{"key": taken, "path": "config.json"}],
    }


def test_a_token_may_have_another_key(world: Any, make: Any) -> None:
    for uri, variable in (("hf://org/model", "HF_TOKEN"), ("https://h/m", "KVASIR_HTTP_TOKEN")):
        spec = {"model": {"uri": uri, "secretRef": {"name": "hub", "key": "mine"}}}
        (container,) = pod_of(world(spec).see(secrets=SECRETS, claim=claim()), make)["containers"]
        token = {"secretKeyRef": {"name": "hub", "key": "mine"}}
        assert {"name": variable, "valueFrom": token} in container["env"]
