"""Messages in `kubectl get llmd -o yaml` for each thing that is wrong: one sentence, with the
remedy where there is one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kvasir.kube.objects import condition, label
from kvasir_operator.kinds import JOBS, PODS

TINY = {"uri": "builtin://kvasir-tiny"}
NO_GPU = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
ABSENT = "hf://org/m does not exist; check the model's URI"
_NOW = "2026-01-01T00:00:00Z"

WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "secret": (
        {"model": {"uri": "hf://org/m", "secretRef": {"name": "hub"}}},
        "SecretMissing",
        "Secret 'hub' does not exist in namespace {namespace}; create it.",
    ),
    "env": (
        {
            "engine": {
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
            }
        },
        "SecretMissing",
        "Secret 's' does not exist in namespace {namespace}; create it.",
    ),
    "claim": (
        {"model": {"uri": "pvc://mine/m"}},
        "ClaimMissing",
        "Claim 'mine' does not exist in namespace {namespace}; create it.",
    ),
    "image": (
        {"engine": {"image": "nowhere/none:1"}},
        "ImagePullFailed",
        "0 of 1 engines of the newest revision are up. Image nowhere/none:1 cannot be pulled by pod"
        " {pod}: not found",
    ),
    "gpu": (
        {"resources": {"limits": {"nvidia.com/gpu": 1}}},
        "InsufficientGPUs",
        "0 of 1 engines of the newest revision are up. Pod {pod} cannot be scheduled: "
        + NO_GPU
        + " A replica asks for 1 GPUs; of the nodes that it may run on none offers nvidia.com/gpu"
        " (is the device plugin installed?).",
    ),
    "quota": (
        {"resources": {"limits": {"nvidia.com/gpu": 8}}, "parallelism": {"tensor": 8}},
        "QuotaExceeded",
        "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used:"
        " requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=2",
    ),
    "model": (
        {"model": {"uri": "hf://org/m"}},
        "DownloadFailed",
        f"The download failed: {ABSENT}.",
    ),
    "second": (
        {"model": {**TINY, "name": "taken"}},
        "NameConflict",
        "Model name 'taken' belongs to LLMDeployment {namespace}/first, which claimed it"
        " first; give spec.model.name another value.",
    ),
}
"""By the name of the LLMDeployment: its spec, and the reason and message of its Ready."""


def fate(pod: dict[str, Any]) -> dict[str, Any] | None:
    """As kubelets and the scheduler tell it."""
    container = pod["spec"]["containers"][0]
    if container["image"] == "nowhere/none:1":
        state = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
        return {"phase": "Pending", "containerStatuses": [status(container, state)]}
    if "nvidia.com/gpu" in container["resources"].get("limits", {}):
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        return {
            "phase": "Pending",
            "conditions": [{**scheduled, "message": NO_GPU, "lastTransitionTime": _NOW}],
        }
    return None


def status(container: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    own = {"name": container["name"], "image": container["image"], "imageID": ""}
    return {**own, "ready": False, "restartCount": 0, "state": state}


async def fail_download(site: Any) -> bool:
    """The download's pod ends as `kvasir download` ends for what cannot succeed."""
    selector = "kvasir.dev/component=download"
    pods = await site.cluster.list(PODS, site.namespace, selector)
    words = {"phase": "failed", "bytes": 0, "totalBytes": 0, "error": ABSENT, "permanent": True}
    for pod in pods:
        ended = {"exitCode": 2, "reason": "Error", "message": json.dumps(words)}
        moments = {"startedAt": _NOW, "finishedAt": _NOW}
        state = {"terminated": {**ended, **moments}}
        told = {
            "phase": "Failed",
            "containerStatuses": [status(pod["spec"]["containers"][0], state)],
        }
        await site.cluster.merge_status(PODS, site.namespace, pod["metadata"]["name"], told)
    return bool(pods)


@pytest.mark.slow
async def test_the_sentence_for_each(site: Any, start: Any, plane: Any) -> None:
    plane.kubectl(
        "-n", site.namespace, "create", "quota", "gpus", "--hard=requests.nvidia.com/gpu=2"
    )
    site.fate = fate
    start()
    await site.apply("first", model={**TINY, "name": "taken"})
    await site.until("Ready", "True", name="first")
    for name, (spec, reason, _) in WRONG.items():
        await site.apply(name, **spec)
        if name == "model":
            await site.eventually(lambda: fail_download(site), "a download")
        await site.until("Ready", "False", reason, name=name)
    pods = {label(pod, "kvasir.dev/deployment"): pod for pod in await site.engines()}
    for name, (_, _, sentence) in WRONG.items():
        pod = pods.get(name, {"metadata": {"name": ""}})["metadata"]["name"]
        found = condition(await site.get(name=name), "Ready")["message"]
        expected = sentence.format(namespace=site.namespace, pod=pod)
        assert expected in found if name == "quota" else expected == found
    (job,) = await site.cluster.list(JOBS, site.namespace)
    await asyncio.sleep(3)  # three resyncs
    (same,) = await site.cluster.list(JOBS, site.namespace)
    assert job["metadata"]["uid"] == same["metadata"]["uid"]
    assert await site.condition("Ready", "first") == ("True", "Serving")
