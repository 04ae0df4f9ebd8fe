"""The plan as a whole, and what its failures make of the status."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.resource.deployment_status import Reason
from kvasir_operator.plan.failure import Failure
from kvasir_operator.plan.plan import with_failures

FAILED = [
    Failure("Service m", "The Service is refused.", Reason.API_ERROR, passing=True),
    Failure("", "So is the Deployment.", Reason.UNKNOWN, passing=False),
]


def test_without_failures_the_status_stays(world: Any) -> None:
    one = world()
    status = one.plan().status
    assert with_failures(status, [], one.observed) is status


@pytest.mark.parametrize(("ready", "phase"), [(0, "Failed"), (None, "Failed"), (1, "Degraded")])
def test_a_failure_is_told_beside_the_other_conditions(
    world: Any, ready: int | None, phase: str
) -> None:
    one = world()
    status = {**one.plan().status, "readyReplicas": ready}
    made = with_failures(status, FAILED, one.observed)
    before = {each["type"]: each for each in status["conditions"]}
    after = {each["type"]: each for each in made["conditions"]}
    assert made["phase"] == phase
    assert made["url"] == status["url"]
    told = ("APIError", "The Service is refused. So is the Deployment.")
    for kind, value in (("Degraded", "True"), ("Stalled", "True"), ("Ready", "False")):
        now = after.pop(kind)
        assert (now["status"], now["reason"], now["message"]) == (value, *told)
        before.pop(kind, None)
    assert before.pop("Reconciling")["status"] == "True", "what had been waited for"
    assert after == before


def test_the_first_failure_of_a_new_resource_is_its_status(world: Any) -> None:
    one = world()
    made = with_failures({}, FAILED[1:], one.observed)
    assert [each["type"] for each in made["conditions"]] == ["Degraded", "Stalled", "Ready"]
    assert made["phase"] == "Failed"


@pytest.mark.parametrize("old", ["0", "zz"])
def test_pods_of_any_other_revision_are_old(world: Any, make: Any, old: str) -> None:
    one = world({"model": {"uri": "builtin://kvasir-tiny"}, "replicas": 1})
    one.step()
    new = make.pod("a", one.revision, up=True, routed=True)
    made = one.pods(new, make.pod("b", old, up=True, routed=True)).plan()
    status, reason, message = make.condition(made, "WorkloadReady")
    assert (status, reason) == ("False", "RollingOut")
    assert "1 of 1 engines of the newest revision are up; 1 of older revisions" in message


def test_pods_that_leave_or_have_ended_count_no_more(world: Any, make: Any) -> None:
    one = world({"model": {"uri": "builtin://kvasir-tiny"}, "replicas": 2})
    one.step()
    gone = [make.pod(name, one.revision, up=True, routed=True) for name in "ab"]
    for pod, phase in zip(gone, ("Succeeded", "Failed"), strict=True):
        pod["status"]["phase"] = phase
    leaving = make.pod("c", one.revision, up=True, routed=True, leaving=True)
    made = one.pods(*gone, leaving, make.pod("d", one.revision, up=True, routed=True)).plan()
    assert make.condition(made, "WorkloadReady")[1:] == (
        "Starting",
        "1 of 2 engines of the newest revision are up.",
    )


def test_more_engines_than_wanted_is_a_rollout(world: Any, make: Any) -> None:
    one = world({"model": {"uri": "builtin://kvasir-tiny"}, "replicas": 1})
    one.step()
    pods = [make.pod(name, one.revision, up=True, routed=True) for name in "ab"]
    assert make.condition(one.pods(*pods).plan(), "WorkloadReady")[1] == "RollingOut"
    assert make.condition(one.edit({"replicas": 0}).plan(), "WorkloadReady")[1] == "RollingOut"
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    one.edit({"replicas": 1}).step()
    one.see(deployment={**one.observed.deployment, "status": {"conditions": [late]}})
    assert make.condition(one.plan(), "WorkloadReady")[1] == "RollingOut"
    pending = make.pod("a", one.revision)
    told = make.condition(one.pods(pending).plan(), "WorkloadReady")
    assert told[:2] == ("False", "ProgressDeadlineExceeded")


@pytest.mark.parametrize(
    ("most", "words"),
    [
        (0, "the nodes that it may run on none offers nvidia.com/gpu"),
        (1, "A replica asks for 2 GPUs; of the nodes that it may run on the largest has 1."),
        (2, ""),
        (4, ""),
        (None, ""),
    ],
)
def test_a_pod_without_gpus_says_what_nodes_have(
    world: Any, make: Any, most: int | None, words: str
) -> None:
    spec = {
        "model": {"uri": "builtin://kvasir-tiny"},
        "resources": {"limits": {"nvidia.com/gpu": 2}},
        "parallelism": {"tensor": 2},
    }
    one = world(spec)
    one.step()
    stuck = make.unschedulable("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    one.pods(make.pod("a", one.revision, status=stuck))
    hardware = one.observed.hardware.__class__(None, most)
    message = make.condition(one.see(hardware=hardware).plan(), "WorkloadReady")[2]
    assert words in message
    assert ("A replica asks" in message) == bool(words)


def test_the_status_counts_as_the_deployment_does(world: Any) -> None:
    one = world()
    one.step()
    counted = {"replicas": 3, "readyReplicas": 2, "updatedReplicas": 1}
    one.see(deployment={**one.observed.deployment, "status": counted})
    status = one.plan().status
    assert {name: status[name] for name in counted} == counted
    assert status["selector"] == "kvasir.dev/component=engine,kvasir.dev/deployment=m"


@pytest.mark.parametrize("device", ["cpu", "sim", "auto"])
def test_without_gpus_there_is_nothing_to_fit(world: Any, make: Any, device: str) -> None:
    spec = {"model": {"uri": "builtin://kvasir-tiny"}, "engine": {"config": {"device": device}}}
    made = world(spec).plan()
    assert make.condition(made, "Fits")[1] == "NotNeeded"
    container = make.manifest(made, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert "nvidia.com/gpu" not in container["resources"].get("limits", {})
    assert "--tensor-parallel-size" not in container["args"]


@pytest.mark.parametrize(
    ("up", "reason"), [(0, "ImagePullFailed"), (1, "Available"), (2, "RollingOut")]
)
def test_a_pod_with_a_problem_counts_while_engines_are_missing(
    world: Any, make: Any, up: int, reason: str
) -> None:
    one = world({"model": {"uri": "builtin://kvasir-tiny"}, "replicas": 1})
    one.step()
    bad = make.pod("x", one.revision, status=make.waiting("ErrImagePull", "not found"))
    one.pods(bad, *(make.pod(name, one.revision, up=True) for name in "ab"[:up]))
    assert make.condition(one.plan(), "WorkloadReady")[1] == reason
