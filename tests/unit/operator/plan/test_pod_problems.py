"""What keeps pods from running: a word, and a sentence with the remedy where there is one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from support.operator_world import BUILTIN

from kvasir_operator.objects import format_time


def crashed(message: str) -> dict[str, Any]:
    ended = {"terminated": {"exitCode": 2, "reason": "Error", "message": message}}
    return {"restartCount": 5, "lastState": ended}


@pytest.mark.parametrize(
    ("kind", "detail", "reason", "words"),
    [
        ("ErrImagePull", "not found", "ImagePullFailed", "Image cpu:1 cannot be pulled by pod a"),
        (
            "CreateContainerConfigError",
            "couldn't find key k in Secret ns/s",
            "ContainerConfigError",
            "Pod a cannot be started: couldn't find key k in Secret ns/s",
        ),
        ("ContainerCreating", "", None, ""),
    ],
)
def test_a_container_that_waits(
    world: Any, make: Any, kind: str, detail: str, reason: str | None, words: str
) -> None:
    one = world()
    one.step()
    made = one.pods(make.pod("a", one.revision, status=make.waiting(kind, detail))).step()
    found = make.condition(made, "WorkloadReady")
    assert found[1] == (reason or "Starting")
    assert words in found[2]
    assert made.status["phase"] == ("Failed" if reason else "Starting")


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_container_of_the_template_that_crashes_is_told(world: Any, make: Any, kind: str) -> None:
    one = world({**BUILTIN, "template": {"spec": {kind: [{"name": "proxy", "image": "p:1"}]}}})
    one.step()
    pod = make.pod("a", one.revision)
    loop = {"waiting": {"reason": "CrashLoopBackOff"}}
    broken = {"name": "proxy", "state": loop, **crashed("no such host")}
    statuses = pod["status"].setdefault(kind.removesuffix("s") + "Statuses", [])
    statuses.append(broken)
    told = make.condition(one.pods(pod).step(), "WorkloadReady")
    assert told[1] == "Crashing"
    assert "Pod a (container proxy) crashed 5 times (Error, exit code 2): no such host" in told[2]
    broken["name"] = "injected"  # by an admission webhook
    assert make.condition(one.pods(pod).step(), "WorkloadReady")[1] == "Starting"


def test_a_crash_is_told_with_the_engines_last_words(world: Any, make: Any) -> None:
    one = world()
    one.step()
    status = make.waiting("CrashLoopBackOff", "back-off", **crashed("kvasir serve: no such flag"))
    made = one.pods(make.pod("a", one.revision, status=status)).step()
    assert make.condition(made, "Ready") == (
        "False",
        "Crashing",
        "0 of 1 engines of the newest revision are up. Pod a crashed 5 times (Error, exit code 2):"
        " kvasir serve: no such flag",
    )


@pytest.mark.parametrize(
    ("waits", "restarts", "reason", "words"),
    [
        ("CrashLoopBackOff", 1, "Crashing", "Pod a crashed once (Error, exit code 2): oh"),
        ("CrashLoopBackOff", 2, "Crashing", "Pod a crashed 2 times"),
        ("", 3, "Crashing", "Pod a crashed 3 times"),
        ("", 2, "Starting", ""),
    ],
)
def test_what_counts_as_crashing(
    world: Any, make: Any, waits: str, restarts: int, reason: str, words: str
) -> None:
    """A back-off always; without one, the third restart of an engine that is not ready."""
    one = world()
    one.step()
    more = {**crashed("oh"), "restartCount": restarts}
    made = one.pods(make.pod("a", one.revision, status=make.waiting(waits, "", **more))).step()
    found = make.condition(made, "WorkloadReady")
    assert found[1] == reason
    assert words in found[2]


def test_a_quota_that_is_full(world: Any, make: Any) -> None:
    one = world()
    one.step()
    message = 'pods "m-x" is forbidden: exceeded quota: q, requested: pods=1, limited: pods=0'
    failure = {"type": "ReplicaFailure", "status": "True", "message": message}
    one.see(deployment={**one.observed.deployment, "status": {"conditions": [failure]}})
    made = one.step()
    assert make.condition(made, "Ready")[1] == "QuotaExceeded"
    assert "exceeded quota: q" in make.condition(made, "Degraded")[2]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("1 Insufficient amd.com/gpu.", "InsufficientGPUs"),
        ("1 Insufficient nvidia.com/mig-1g.10gb.", "InsufficientGPUs"),
        ("1 cannot allocate all claims.", "InsufficientGPUs"),
        ("1 Insufficient rdma/ib.", "Unschedulable"),
        ("1 Insufficient memory.", "Unschedulable"),
    ],
)
def test_gpus_of_any_kind_are_missed_by_name(
    world: Any, make: Any, words: str, reason: str
) -> None:
    one = world()
    one.step()
    stuck = make.unschedulable(f"0/1 nodes are available: {words}")
    made = one.pods(make.pod(revision=one.revision, status=stuck)).plan()
    assert make.condition(made, "WorkloadReady")[1] == reason


@pytest.fixture
def tied(world: Any) -> Any:
    """Three replicas whose model lies on a ReadWriteOnce claim."""
    metadata = {"name": "w", "namespace": "ns", "uid": "c"}
    claim = {"metadata": metadata, "spec": {"accessModes": ["ReadWriteOnce"]}}
    one = world({"model": {"uri": "pvc://w"}, "replicas": 3}).see(claim=claim)
    one.step()
    return one


@pytest.mark.parametrize(
    "message",
    [
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had volume node affinity conflict.",
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match PersistentVolume's"
        " node affinity. preemption: 0/2 nodes are available.",
        "0/2 nodes are available: 1 node(s) had no available volume zone.",
        "0/2 nodes are available: 2 Insufficient cpu.",
    ],
)
def test_replicas_that_do_not_fit_on_the_volumes_node(tied: Any, make: Any, message: str) -> None:
    up = make.pod("a", tied.revision, up=True, routed=True)
    made = tied.pods(up, make.pod("b", tied.revision, status=make.unschedulable(message))).step()
    found = make.condition(made, "Degraded")
    assert found[:2] == ("True", "VolumeOnOtherNode")
    assert "spec.cache.pvc.accessModes [ReadWriteMany]" in found[2]


def test_a_pod_that_waits_for_a_volume_of_another_node(tied: Any, make: Any) -> None:
    up = make.pod("a", tied.revision, up=True, routed=True, node="n1")
    since = format_time(make.NOW)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    status = {**make.waiting("ContainerCreating", ""), "conditions": [scheduled]}
    tied.pods(up, make.pod("b", tied.revision, node="n2", status=status))
    assert make.condition(tied.plan(), "WorkloadReady")[1] == "Starting"
    tied.see(now=make.NOW + timedelta(seconds=121))
    assert make.condition(tied.plan(), "WorkloadReady")[1] == "VolumeOnOtherNode"


@pytest.mark.parametrize(
    "message",
    [
        "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind.",
        'persistentvolumeclaim "m-models" is being deleted',
    ],
)
def test_a_volume_that_is_not_bound(tied: Any, make: Any, message: str) -> None:
    made = tied.pods(make.pod("a", tied.revision, status=make.unschedulable(message))).step()
    assert make.condition(made, "Ready")[1] == "ClaimNotBound"
    assert made.status["phase"] == "Pending"


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_crash_loop_is_told_before_the_third_restart(
    world: Any, make: Any, restarts: int
) -> None:
    one = world()
    one.step()
    more = {**crashed("no such flag"), "restartCount": restarts}
    status = make.waiting("CrashLoopBackOff", "back-off", **more)
    made = one.pods(make.pod("a", one.revision, status=status)).step()
    times = {1: "once", 2: "2 times"}[restarts]
    assert make.condition(made, "WorkloadReady")[1] == "Crashing"
    assert f"Pod a crashed {times} (Error" in make.condition(made, "WorkloadReady")[2]
