"""The model's way onto its volume: claim, Job, progress, failure, another model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.operators.downloads import HUB, SECRETS, claim, ended, job_pod, removed

from kvasir.models.download.progress import DownloadPhase, Progress
from kvasir_operator.objects import format_time

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


def test_another_wish_for_the_pod_makes_another_job_unless_it_runs(cached: Any, make: Any) -> None:
    name = cached.observed.jobs[0]["metadata"]["name"]
    more = {"cache": {"download": {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}}}
    cached.edit(more)
    assert removed(cached.plan()) == [name]
    running = Progress(DownloadPhase.DOWNLOADING, 1, 2)
    assert not removed(cached.see(progress={name: running}).plan())
    words = Progress(DownloadPhase.FAILED, error="no", permanent=True)
    failed = ended(cached.observed.jobs[0], "Failed", format_time(make.NOW))
    pod = job_pod(name, words.termination_message())
    assert removed(cached.see(progress={}, jobs=(failed,), job_pods=(pod,)).plan()) == [name]
    done = ended(cached.observed.jobs[0], "Complete", format_time(make.NOW))
    assert not removed(cached.see(jobs=(done,), job_pods=()).plan())


@pytest.mark.parametrize(
    ("message", "reason", "remedy"),
    [
        (
            'pods "x" is forbidden: failed quota: q: must specify limits.cpu for: download',
            "QuotaExceeded",
            "spec.cache.download.resources",
        ),
        ('pods "x" is forbidden: exceeded quota: q', "QuotaExceeded", "Raise the quota"),
        ("admission webhook denied the request", "PodsRefused", "denied the request."),
    ],
)
def test_a_pod_that_may_not_be_made_is_told(
    cached: Any, make: Any, message: str, reason: str, remedy: str
) -> None:
    name = cached.observed.jobs[0]["metadata"]["name"]
    made = cached.see(refused_pods={name: message}).plan()
    status, why, words = make.condition(made, "ModelCached")
    assert (status, why) == ("False", reason)
    assert words.startswith(f"The download's pod cannot be made: {message}.")
    assert remedy in words
    assert make.condition(made, "Degraded")[:2] == ("True", reason)


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        ("DeadlineExceeded", "Job was active too long", "within spec.cache.download.deadline"),
        ("BackoffLimitExceeded", "Job has reached the limit", "Job has reached the limit; see"),
        ("", "", "failed: see the logs of its pod"),
    ],
)
def test_a_job_that_ended_without_a_report_has_its_own_reason(
    cached: Any, make: Any, reason: str, message: str, words: str
) -> None:
    job = ended(cached.observed.jobs[0], "Failed", format_time(make.NOW))
    job["status"]["conditions"][0] |= {"reason": reason, "message": message}
    made = cached.see(jobs=(job,)).plan()
    assert make.condition(made, "ModelCached")[1] == "DownloadFailed"
    assert words in make.condition(made, "ModelCached")[2]


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
    made = cached.later(3600).plan()
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


def test_a_download_that_told_nothing_of_the_model_leaves_no_note(cached: Any, make: Any) -> None:
    job = ended(cached.observed.jobs[0], "Complete", format_time(make.NOW))
    words = Progress(DownloadPhase.DONE, 5, 5).termination_message()
    pod = job_pod(job["metadata"]["name"], words)
    assert cached.see(jobs=(job,), job_pods=(pod,)).plan().note is None


def test_pods_wish_to_be_where_a_volume_of_one_node_is(cached: Any, make: Any) -> None:
    done = ended(cached.observed.jobs[0], "Complete", format_time(make.NOW))
    pod = make.manifest(cached.see(jobs=(done,)).plan(), "Deployment")["spec"]["template"]["spec"]
    assert "podAffinity" in pod["affinity"]
    made = cached.see(claim=claim(["ReadWriteMany"])).plan()
    pod = make.manifest(made, "Deployment")["spec"]["template"]["spec"]
    assert "affinity" not in pod


def test_one_that_wants_what_another_downloads_waits_while_that_ones_pod_runs(
    hub: Any, make: Any
) -> None:
    hub.see(claim=claim())
    ours = make.manifest(hub.plan(), "Job")
    name = ours["metadata"]["name"].replace("m-dl-", "first-dl-")
    labels = {**ours["metadata"]["labels"], "kvasir.dev/deployment": "first"}
    theirs = {**ours, "metadata": {**ours["metadata"], "name": name, "labels": labels}}
    made = hub.see(same_downloads=({**theirs, "status": {"active": 1, "ready": 1}},)).plan()
    assert "Job" not in [each["kind"] for each in made.manifests]
    assert made.requeue == 5.0
    assert make.condition(made, "ModelCached") == (
        "False",
        "DownloadPending",
        "LLMDeployment first is downloading the same model onto the same claim.",
    )
    # One that is only waiting for a place may wait for ever
    for status in ({"active": 1, "ready": 0}, {}, ended(theirs, "Complete", "")["status"]):
        made = hub.see(same_downloads=({**theirs, "status": status},)).plan()
        assert make.manifest(made, "Job")["metadata"]["name"] == ours["metadata"]["name"]


def test_what_a_download_waits_for_is_told(hub: Any, cached: Any, make: Any) -> None:
    def told() -> tuple[str, str]:
        _, reason, message = make.condition(cached.plan(), "ModelCached")
        return reason, message

    name = cached.observed.jobs[0]["metadata"]["name"]
    assert told() == ("DownloadPending", "The download has begun; it has no pod yet.")
    pod = job_pod(name, "no report")
    pod["status"]["containerStatuses"][0]["state"] = {"running": {}}
    cached.see(job_pods=(pod,))
    assert told() == ("DownloadPending", "The download has begun; its pod is starting.")
    for progress, message in (
        (Progress(DownloadPhase.DOWNLOADING), "Downloading the model's files."),
        (Progress(DownloadPhase.DOWNLOADING, 0, 1 << 30), "Downloading: 0 B of 1.0 GiB."),
    ):
        cached.see(progress={name: progress})
        assert told() == ("Downloading", message)
    done = ended(cached.observed.jobs[0], "Complete", format_time(make.NOW))
    cached.see(jobs=(done,), progress={name: Progress(DownloadPhase.DOWNLOADING, 5, 5 << 30)})
    assert told() == ("Cached", "5.0 GiB are there.")


@pytest.mark.parametrize(
    ("permanent", "message"),
    [(True, "The download failed: no such model."), (False, "no such model. It is tried again.")],
)
def test_a_failure_says_if_it_is_tried_again(
    cached: Any, make: Any, permanent: bool, message: str
) -> None:
    job = ended(cached.observed.jobs[0], "Failed", format_time(make.NOW))
    words = Progress(DownloadPhase.FAILED, error="no such model.", permanent=permanent)
    pod = job_pod(job["metadata"]["name"], words.termination_message())
    made = cached.see(jobs=(job,), job_pods=(pod,)).plan()
    assert make.condition(made, "ModelCached")[1] == "DownloadFailed"
    assert make.condition(made, "ModelCached")[2].endswith(message)


def test_a_claim_of_the_users_class(world: Any, make: Any) -> None:
    pvc = {"size": "7Gi", "storageClassName": "fast", "accessModes": ["ReadWriteMany"]}
    one = world({**HUB, "cache": {"pvc": pvc}}).see(secrets=SECRETS)
    assert make.manifest(one.plan(), "PersistentVolumeClaim")["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "7Gi"}},
        "storageClassName": "fast",
    }
