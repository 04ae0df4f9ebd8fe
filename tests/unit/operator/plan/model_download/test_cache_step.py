"""The model's way onto its volume: claim, Job, progress, failure, another model."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kvasir.models.download.progress import DownloadPhase, Progress
from kvasir_operator.objects import format_time

HUB = {"model": {"uri": "hf://org/model", "secretRef": {"name": "hub"}}}
SECRETS = {"hub": "u/1"}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}


def claim(modes: list[str] | None = None, uid: str = "c1") -> dict[str, Any]:
    return {
        "metadata": {"name": "m-models", "namespace": "ns", "uid": uid},
        "spec": {"accessModes": modes or ["ReadWriteOnce"]},
    }


def ended(job: dict[str, Any], kind: str, since: str) -> dict[str, Any]:
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": since}]
    return {**job, "status": {"conditions": conditions}}


def job_pod(name: str, message: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": 1, "message": message}}
    return {
        "metadata": {"name": f"{name}-x", "namespace": "ns", "labels": {"job-name": name}},
        "spec": {},
        "status": {"containerStatuses": [{"name": "download", "state": state}]},
    }


def removed(made: Any) -> list[str]:
    """Names of the Jobs that shall go."""
    return [each["metadata"]["name"] for each in made.deletions if each["kind"] == "Job"]


@pytest.fixture
def hub(world: Any) -> Any:
    return world(HUB).see(secrets=SECRETS)


@pytest.fixture
def cached(hub: Any, make: Any) -> Any:
    """A world with its claim and its Job."""
    hub.see(claim=claim())
    return hub.see(jobs=(make.manifest(hub.plan(), "Job"),))


def test_first_the_claim_then_the_job_then_engines(hub: Any, make: Any) -> None:
    made = hub.plan()
    kinds = [each["kind"] for each in made.manifests]
    assert "PersistentVolumeClaim" in kinds
    assert not {"Job", "Deployment"} & set(kinds)
    asked = make.manifest(made, "PersistentVolumeClaim")["spec"]
    assert asked == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "100Gi"}},
    }
    made = hub.see(claim=claim()).plan()
    job = make.manifest(made, "Job")
    assert len(job["metadata"]["name"]) <= 63
    assert "Deployment" not in [each["kind"] for each in made.manifests]
    assert make.condition(made, "ModelCached")[:2] == ("False", "DownloadPending")
    done = ended(job, "Complete", "2026-01-02T03:04:05Z")
    made = hub.see(jobs=(done,)).plan()
    assert make.condition(made, "ModelCached")[:2] == ("True", "Cached")
    pod = make.manifest(made, "Deployment")["spec"]["template"]["spec"]
    (engine,) = pod["containers"]
    assert engine["args"][1].startswith("/models/hf-org-model-")
    mounts = {each["mountPath"]: each for each in engine["volumeMounts"]}
    assert mounts["/models"]["readOnly"]
    assert "--revision" not in engine["args"]


def test_the_job_has_the_token_and_the_engines_places(world: Any, make: Any) -> None:
    where = {"nodeSelector": {"gpu": "h200"}, "tolerations": [{"operator": "Exists"}]}
    one = world({**HUB, "podTemplate": where}).see(secrets=SECRETS, claim=claim())
    pod = make.manifest(one.plan(), "Job")["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"gpu": "h200"}
    assert pod["tolerations"] == [{"operator": "Exists"}]
    (container,) = pod["containers"]
    assert container["args"] == [
        *("download", "hf://org/model", "--to", "/models", "--evict", "--progress-port", "8000")
    ]
    token = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert {"name": "HF_TOKEN", "valueFrom": token} in container["env"]


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


def test_engines_never_see_the_downloads_secret(cached: Any, make: Any) -> None:
    done = ended(cached.observed.jobs[0], "Complete", "2026-01-02T03:04:05Z")
    made = cached.see(jobs=(done,)).plan()
    assert "hub" not in json.dumps(make.manifest(made, "Deployment"))
    again = cached.see(secrets={"hub": "u/2"}).plan()
    assert make.manifest(again, "Deployment") == make.manifest(made, "Deployment")


def test_progress_is_told_and_asked_for_again(cached: Any, make: Any) -> None:
    progress = Progress(DownloadPhase.DOWNLOADING, 1 << 30, 4 << 30, 90)
    name = cached.observed.jobs[0]["metadata"]["name"]
    made = cached.see(progress={name: progress}).plan()
    assert make.condition(made, "ModelCached") == (
        "False",
        "Downloading",
        "Downloading: 1.0 GiB of 4.0 GiB, about 90 s to go.",
    )
    assert made.status["cache"] == {
        "phase": "downloading",
        "bytes": 1 << 30,
        "totalBytes": 4 << 30,
        "etaSeconds": 90,
    }
    assert made.status["phase"] == "Caching"
    assert made.requeue == 5.0


def test_a_model_that_does_not_exist_is_not_tried_for_ever(cached: Any, make: Any) -> None:
    words = Progress(DownloadPhase.FAILED, error="hf://org/model does not exist", permanent=True)
    job = ended(cached.observed.jobs[0], "Failed", format_time(make.NOW))
    pod = job_pod(job["metadata"]["name"], words.termination_message())
    cached.see(jobs=(job,), job_pods=(pod,))
    for later in (0, 3600):
        made = cached.later(later).plan()
        assert make.condition(made, "ModelCached") == (
            "False",
            "DownloadFailed",
            "The download failed: hf://org/model does not exist.",
        )
        assert made.status["phase"] == "Failed"
        assert not removed(made)
        assert made.requeue is None


def test_a_new_secret_is_a_reason_to_try_again(cached: Any, make: Any) -> None:
    words = Progress(DownloadPhase.FAILED, error="the token is refused", permanent=True)
    job = ended(cached.observed.jobs[0], "Failed", format_time(make.NOW))
    pod = job_pod(job["metadata"]["name"], words.termination_message())
    made = cached.see(jobs=(job,), job_pods=(pod,), secrets={"hub": "u/2"}).plan()
    assert removed(made) == [job["metadata"]["name"]]


def test_a_failure_that_may_pass_is_tried_again_after_five_minutes(cached: Any, make: Any) -> None:
    job = ended(cached.observed.jobs[0], "Failed", format_time(make.NOW))
    made = cached.see(jobs=(job,)).plan()
    assert not removed(made)
    assert made.requeue == 300
    made = cached.later(300).plan()
    assert len(removed(made)) == 1
    assert make.condition(made, "ModelCached")[1] == "DownloadPending"


def test_another_model_downloads_while_the_old_one_serves_and_scales(
    cached: Any, make: Any
) -> None:
    old_job = ended(cached.observed.jobs[0], "Complete", format_time(make.NOW))
    cached.see(jobs=(old_job,)).step()
    cached.pods(make.pod("a", cached.revision, up=True, routed=True))
    assert cached.step().status["phase"] == "Ready"
    made = cached.edit({"model": {"uri": "hf://org/other"}, "replicas": 3}).plan()
    kinds = [each["kind"] for each in made.manifests]
    assert "Job" in kinds
    assert "Deployment" not in kinds
    assert made.scale == 3
    assert removed(made) == [old_job["metadata"]["name"]]
    assert made.status["phase"] == "Updating"
    assert make.condition(made, "Ready")[0] == "False"


def test_a_volume_of_its_own_is_only_mounted(world: Any, make: Any) -> None:
    one = world({"model": {"uri": "pvc://weights/llama/8b"}})
    made = one.plan()
    assert make.condition(made, "ModelCached")[:2] == ("False", "ClaimMissing")
    assert (
        "Claim 'weights' does not exist in namespace ns" in make.condition(made, "ModelCached")[2]
    )
    made = one.see(claim=claim()).plan()
    pod = make.manifest(made, "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][1] == "/models/llama/8b"
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "weights"}
    kinds = [each["kind"] for each in made.manifests]
    assert not {"PersistentVolumeClaim", "Job"} & set(kinds)
    old = {"kind": "Job", "metadata": {"name": "m-dl-old", "namespace": "ns"}}
    assert old in one.see(jobs=(old,)).plan().deletions


def test_a_kept_volume_has_no_owner(world: Any, make: Any) -> None:
    one = world({**HUB, "cache": {"retention": "Retain", "pvc": {"size": "5Gi"}}})
    made = one.see(secrets=SECRETS).plan()
    found = make.manifest(made, "PersistentVolumeClaim")
    assert "ownerReferences" not in found["metadata"]
    assert found["spec"]["resources"]["requests"]["storage"] == "5Gi"


def test_what_the_download_told_of_the_model_is_kept_on_its_job(cached: Any, make: Any) -> None:
    words = Progress(DownloadPhase.DONE, 5, 5, config=CONFIG, weight_bytes=1000)
    job = ended(cached.observed.jobs[0], "Complete", format_time(make.NOW))
    pod = job_pod(job["metadata"]["name"], words.termination_message())
    made = cached.see(jobs=(job,), job_pods=(pod,)).plan()
    assert made.note is not None
    kept = made.note[1]
    job["metadata"]["annotations"] = {**job["metadata"]["annotations"], **kept}
    made = cached.see(jobs=(job,), job_pods=()).plan()
    assert made.note is None
    assert json.loads(kept["kvasir.dev/model-config"])["weightsBytes"] == 1000


def test_pods_wish_to_be_where_a_volume_of_one_node_is(cached: Any, make: Any) -> None:
    done = ended(cached.observed.jobs[0], "Complete", format_time(make.NOW))
    pod = make.manifest(cached.see(jobs=(done,)).plan(), "Deployment")["spec"]["template"]["spec"]
    assert "podAffinity" in pod["affinity"]
    made = cached.see(claim=claim(["ReadWriteMany"])).plan()
    pod = make.manifest(made, "Deployment")["spec"]["template"]["spec"]
    assert "affinity" not in pod
