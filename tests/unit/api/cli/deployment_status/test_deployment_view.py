"""From objects as a cluster has them to what is said of them."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from kvasir.cli.deployment_status.deployment_view import view_deployment
from kvasir.cli.deployment_status.pod_view import view_pod
from kvasir.cli.deployment_status.tree import make_tree
from kvasir.models.download.progress import DownloadPhase, Progress

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> Any:
    return {"type": kind, "status": status, "reason": reason, "message": message}


RESOURCE: dict[str, Any] = {
    "metadata": {"namespace": "ml", "name": "qwen", "generation": 3},
    "spec": {
        "model": {"uri": "hf://Qwen/Qwen3-8B", "revision": "main", "aliases": ["chat"]},
        "replicas": 2,
    },
    "status": {
        "observedGeneration": 3,
        "phase": "Ready",
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "url": "http://router:8080",
        "conditions": [
            condition("Accepted"),
            condition("ModelCached"),
            condition("WorkloadReady"),
            condition("Progressing", "False"),
            condition("Degraded", "False"),
            condition("Ready"),
        ],
        "cache": {
            "phase": "downloading",
            "bytes": 4 << 30,
            "totalBytes": 16 << 30,
            "etaSeconds": 90,
        },
        "fit": {"weightsGiB": 15.3, "kvTokens": 210000, "kvCacheDtype": "fp8", "tensor": 1},
        "startup": {"scheduleSeconds": 3, "loadSeconds": 40},
    },
}
CLAIM: dict[str, Any] = {
    "metadata": {
        "namespace": "ml",
        "name": "qwen-models",
        "labels": {"kvasir.dev/deployment": "qwen"},
    },
    "spec": {"accessModes": ["ReadWriteOnce"]},
    "status": {"phase": "Bound", "capacity": {"storage": "100Gi"}},
}


def pod(name: str = "qwen-1", component: str = "engine", **status: Any) -> dict[str, Any]:
    marks = {"kvasir.dev/deployment": "qwen", "kvasir.dev/component": component}
    created = "2026-01-01T11:50:00Z"
    return {
        "metadata": {
            "namespace": "ml",
            "name": name,
            "labels": marks,
            "creationTimestamp": created,
        },
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", **status},
    }


def container(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "engine", "restartCount": 0, "state": state, **more}]}


READY = {"conditions": [condition("Ready"), condition("ContainersReady")]}
FAILED = Progress(DownloadPhase.FAILED, error="hf://a/b does not exist", permanent=True).as_json()


CRASHED = {
    "name": "sidecar",
    "restartCount": 3,
    "state": {"running": {}},
    "lastState": {"terminated": {"exitCode": 1, "message": "out of memory"}},
}
ELSEWHERE = "0/2 nodes are available: 2 node(s) had volume node affinity conflict."


@pytest.mark.parametrize(
    ("status", "state", "why"),
    [
        (READY, "Running", None),
        ({"conditions": [condition("ContainersReady")]}, "NotRouted", "not every router"),
        ({}, "Running", "is not ready yet"),
        ({"phase": "Pending"}, "Pending", None),
        ({"phase": "Succeeded"}, "Succeeded", None),
        (
            {
                "phase": "Pending",
                "conditions": [
                    condition("PodScheduled", "False", message="Insufficient nvidia.com/gpu")
                ],
            },
            "Unschedulable",
            "Insufficient nvidia.com/gpu",
        ),
        (
            container({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
            "ImagePullBackOff",
            "no such image",
        ),
        (
            container(
                {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                lastState={
                    "terminated": {"exitCode": 1, "reason": "Error", "message": "out of\nmemory"}
                },
            ),
            "CrashLoopBackOff",
            "Error, exit code 1: out of memory",
        ),
        (
            {"containerStatuses": [CRASHED]},
            "Running",
            "Error, exit code 1: out of memory",
        ),
        (
            container({"waiting": {"reason": "ContainerCreating"}}),
            "ContainerCreating",
            None,
        ),
        (
            {"conditions": [condition("PodScheduled", "False", message=ELSEWHERE)]},
            "Unschedulable",
            "spec.cache.pvc.accessModes [ReadWriteMany]",
        ),
        (
            {"phase": "Failed", **container({"terminated": {"exitCode": 2, "message": FAILED}})},
            "Failed",
            "Error, exit code 2: hf://a/b does not exist",
        ),
    ],
)
def test_a_pod_says_why_it_does_not_serve(status, state, why) -> None:
    view = view_pod(pod(**status))
    assert view.state == state
    assert (why is None and view.why is None) or why in view.why


def test_a_pod_that_is_deleted_says_that_first() -> None:
    leaving = pod(**READY)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T11:59:00Z"
    assert view_pod(leaving).state == "Terminating"


def test_a_download_at_work_needs_no_explanation() -> None:
    view = view_pod(pod(component="download", conditions=[condition("ContainersReady")]))
    assert (view.state, view.why) == ("Running", None)


def test_a_ready_deployment_has_nothing_to_explain() -> None:
    foreign = pod("other")
    foreign["metadata"]["labels"]["kvasir.dev/deployment"] = "other"
    view = view_deployment(RESOURCE, [pod(**READY), foreign], [CLAIM])
    assert view.why is None
    assert [each.name for each in view.pods] == ["qwen-1"]
    assert view.names == ("qwen", "chat")
    told = view.as_json()
    assert told["claims"][0]["accessModes"] == ["ReadWriteOnce"]
    assert told["cache"]["totalBytes"] == 16 << 30


def with_conditions(*conditions: Any) -> dict[str, Any]:
    resource = copy.deepcopy(RESOURCE)
    resource["status"]["conditions"] = list(conditions)
    return resource


@pytest.mark.parametrize(
    ("resource", "why"),
    [
        (RESOURCE | {"status": {}}, "no operator has looked at it"),
        (
            with_conditions(
                condition("Ready", "False", "Downloading", "later"),
                condition("WorkloadReady", "False", "Waiting", "for the model"),
                condition("ModelCached", "False", "Downloading", "25 % of 16 GiB"),
            ),
            "Downloading: 25 % of 16 GiB",
        ),
        (
            with_conditions(
                condition("ModelCached", "False", "Downloading", "0 %"),
                condition("Degraded", "True", "ImagePullFailed", "no such image"),
                condition("Ready", "False"),
            ),
            "ImagePullFailed: no such image",
        ),
    ],
)
def test_the_first_obstacle_is_the_reason(resource, why) -> None:
    assert view_deployment(resource, [], []).why.startswith(why)


def test_what_nothing_waits_for_is_no_reason() -> None:
    resource = with_conditions(
        condition("CanaryHealthy", "Unknown", "TooFewSamples"),
        condition("WorkloadReady", "False", "CanaryPaused", "Step 1 of 2"),
        condition("ScalingActive", "False", "MetricsMissing"),
    )
    assert view_deployment(resource, [], []).why == "CanaryPaused: Step 1 of 2"


def owned(pod: dict[str, Any], kind: str, owner: str) -> dict[str, Any]:
    pod["metadata"]["ownerReferences"] = [{"kind": kind, "name": owner}]
    pod["metadata"]["labels"]["pod-template-hash"] = "5c8"
    return pod


def test_pods_stand_under_what_made_them() -> None:
    def made(name: str, spec: dict[str, Any], status: dict[str, Any], **labels: str) -> Any:
        template = {"metadata": {"labels": {"kvasir.dev/revision": "r2", **labels}}}
        metadata = {"namespace": "ml", "name": name, "labels": {"kvasir.dev/deployment": "qwen"}}
        return {"metadata": metadata, "spec": {"template": template, **spec}, "status": status}

    resource = copy.deepcopy(RESOURCE)
    resource["status"]["rollout"] = {
        "phase": "Analysing",
        "step": 1,
        "steps": 2,
        "split": {"weight": 10},
        "samples": {"canary": {"requests": 40}, "stable": {"requests": 360}},
        "message": "Go on.",
    }
    late = condition("Progressing", "False", "ProgressDeadlineExceeded", "has timed out")
    view = view_deployment(
        resource,
        [
            owned(pod("qwen-5c8-a", **READY), "ReplicaSet", "qwen-5c8"),
            owned(pod("qwen-canary-5c8-b"), "ReplicaSet", "qwen-canary-5c8"),
            owned(pod("qwen-dl-c", "download"), "Job", "qwen-dl"),
            pod("bare"),
        ],
        [],
        workloads=[
            made("qwen", {"replicas": 2}, {"readyReplicas": 1, "updatedReplicas": 1}),
            made(
                "qwen-canary",
                {"replicas": 1},
                {"conditions": [late]},
                **{"kvasir.dev/track": "canary"},
            ),
            made("qwen-dl", {"backoffLimit": 3}, {"succeeded": 1}),
        ],
        routers=[pod("router-1", "router", podIP="10.0.0.1")],
    )
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(make_tree(view, NOW, is_wide=True))
    lines = [line.strip("│├└─ ✓✗?") for line in capture.get().splitlines()]
    expected = (
        "canary Analysing at step 1 of 2, 10 % of the requests, canary 40 samples, stable 360",
        "engine  deployment/qwen  1/2 ready  1 of an older revision",
        "qwen-5c8-a  engine",
        "canary  deployment/qwen-canary  0/1 ready",
        "has timed out",
        "qwen-canary-5c8-b  engine",
        "download  job/qwen-dl  1/1 finished",
        "qwen-dl-c  download",
        "pods",
        "bare  engine",
        "routers  0/1 ready",
        "ml/router-1  router  Running",
        "10.0.0.1",
        "the router is not ready yet",
    )
    places = [next(i for i, line in enumerate(lines) if line.startswith(it)) for it in expected]
    assert places == sorted(places)


def test_the_reason_names_the_pod_that_is_in_trouble() -> None:
    resource = with_conditions(condition("WorkloadReady", "False", "Waiting", "0 of 2"))
    waiting = container({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    view = view_deployment(resource, [pod(**waiting)], [])
    assert view.why == "Waiting: 0 of 2 (qwen-1: no such image)"


def test_a_dead_operator_is_told_of_a_ready_deployment_too() -> None:
    view = view_deployment(RESOURCE, [], [], "nobody renews")
    assert (view.why, view.as_json()["operator"]) == (None, "nobody renews")
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(make_tree(view, NOW))
    assert "operator: nobody renews" in capture.get()


def test_a_dead_operator_is_why_nobody_has_looked_at_a_deployment() -> None:
    view = view_deployment(RESOURCE | {"status": {}}, [], [], "nobody renews")
    assert view.why == "nobody renews"
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(make_tree(view, NOW))
    assert capture.get().count("nobody renews") == 1


def test_the_tree_shows_it_all_and_no_control_characters() -> None:
    resource = with_conditions(condition("Accepted", "False", "InvalidSpec", "bad\x1b[2Jfield"))
    resource["metadata"]["generation"] = 4
    console = Console(width=120, color_system=None)
    pods = [pod(**container({"running": {}}, restartCount=3)), pod("qwen-dl", "download")]
    with console.capture() as capture:
        console.print(make_tree(view_deployment(resource, pods, [CLAIM]), NOW))
    text = capture.get()
    for expected in (
        "ml/qwen  Ready  2/2 ready  http://router:8080",
        "why not ready: InvalidSpec: badfield",
        "the status is older than the last change",
        "hf://Qwen/Qwen3-8B@main",
        "qwen, chat",
        "downloading 4.0 GiB of 16.0 GiB (25 %), 1 min left",
        "qwen-models Bound, 100Gi, ReadWriteOnce",
        "weights 15.3 GiB, KV cache 210000 tokens in fp8, 1 GPU a replica",
        "schedule 3 s, load 40 s",
        "✗  Accepted",
        "qwen-1  engine  Running  on n1  3 restarts  10 min",
    ):
        assert expected in text, text
    assert "\x1b" not in text
