"""One revision after the other: surge, no GPU for it, a bad image, a way back, changed secrets."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_operator.plan.observed import Hardware

NO_GPU = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
SPEC = {
    "model": {"uri": "builtin://kvasir-tiny"},
    "resources": {"limits": {"nvidia.com/gpu": 1}},
    "replicas": 2,
}
NEW = {"engine": {"args": ["--no-overlap"]}}


def strategy(make: Any, made: Any) -> tuple[int | str, int | str]:
    rolling = make.manifest(made, "Deployment")["spec"]["strategy"]["rollingUpdate"]
    return rolling["maxSurge"], rolling["maxUnavailable"]


@pytest.fixture
def serving(world: Any, make: Any) -> Any:
    """Two engines serve; `old` is their revision."""
    one = world(SPEC)
    one.step()
    one.old = one.revision
    one.both = [make.pod(name, one.old, up=True, routed=True) for name in "ab"]
    assert one.pods(*one.both).step().status["phase"] == "Ready"
    return one


def test_a_change_of_arguments_is_another_revision(serving: Any, make: Any) -> None:
    made = serving.edit(NEW).step()
    assert serving.revision != serving.old
    assert make.condition(made, "Ready")[:2] == ("False", "RollingOut")
    assert make.condition(made, "Progressing")[0] == "True"
    assert make.condition(made, "Degraded")[0] == "False"
    assert made.status["phase"] == "Updating"
    assert strategy(make, made) == (1, 0)


def test_scaling_is_no_other_revision(serving: Any) -> None:
    serving.edit({"replicas": 5}).step()
    assert serving.revision == serving.old


def test_ready_again_only_without_old_pods(serving: Any, make: Any) -> None:
    serving.edit(NEW).step()
    new = [make.pod(name, serving.revision, up=True, routed=True) for name in "cd"]
    made = serving.pods(*new, serving.both[0]).step()
    assert make.condition(made, "Ready")[0] == "False"
    made = serving.pods(*new).step()
    assert make.condition(made, "Ready")[0] == "True"


def test_without_a_gpu_for_the_surge_pod_one_goes_first(serving: Any, make: Any) -> None:
    serving.edit(NEW).step()
    stuck = make.pod("c", serving.revision, status=make.unschedulable(NO_GPU))
    serving.pods(*serving.both, stuck)
    made = serving.later(59).step()
    assert strategy(make, made) == (1, 0)
    assert made.requeue == 1
    made = serving.later(1).step()
    assert strategy(make, made) == (0, 1)
    assert make.condition(made, "WorkloadReady")[1] == "InsufficientGPUs"
    # It has its node now: the rollout goes on that way until it is over
    made = serving.pods(serving.both[0], make.pod("c", serving.revision)).step()
    assert strategy(make, made) == (0, 1)
    status, reason, message = make.condition(made, "WorkloadReady")
    assert (status, reason) == ("False", "SurgeUnschedulable")
    assert "one goes before one comes" in message
    new = [make.pod(name, serving.revision, up=True, routed=True) for name in "cd"]
    made = serving.pods(*new).step()
    assert strategy(make, made) == (1, 0)
    assert make.condition(made, "Ready")[0] == "True"


def test_no_gpu_on_the_only_node_with_the_volume_is_no_gpu(serving: Any, make: Any) -> None:
    serving.edit(NEW).step()
    message = (
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match"
        " PersistentVolume's node affinity."
    )
    serving.pods(*serving.both, make.pod("c", serving.revision, status=make.unschedulable(message)))
    assert strategy(make, serving.later(60).step()) == (0, 1)


def test_waiting_for_anything_but_a_gpu_gives_up_nothing(serving: Any, make: Any) -> None:
    serving.edit(NEW).step()
    message = "0/2 nodes are available: 2 Insufficient cpu."
    serving.pods(*serving.both, make.pod("c", serving.revision, status=make.unschedulable(message)))
    made = serving.later(600).step()
    assert strategy(make, made) == (1, 0)
    assert make.condition(made, "WorkloadReady")[1] == "Unschedulable"


def test_a_first_start_without_gpus_is_no_rollout(world: Any, make: Any) -> None:
    one = world(SPEC)
    one.step()
    since = make.NOW - timedelta(seconds=600)
    one.pods(make.pod("a", one.revision, status=make.unschedulable(NO_GPU, since)))
    made = one.step()
    assert strategy(make, made) == (1, 0)
    assert made.status["phase"] == "Pending"
    status, reason, message = make.condition(made, "Ready")
    assert (status, reason) == ("False", "InsufficientGPUs")
    assert "2 Insufficient nvidia.com/gpu" in message
    message = make.condition(one.see(hardware=Hardware(None, 0)).step(), "Ready")[2]
    assert "A replica asks for 1 GPUs; of the nodes that it may run on none offers" in message


def test_the_users_own_strategy_is_kept(world: Any, make: Any) -> None:
    one = world({**SPEC, "rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 2}})
    assert strategy(make, one.plan()) == (0, 2)


@pytest.mark.parametrize(
    ("given", "gives_up"),
    [
        ({"maxSurge": "25%", "maxUnavailable": 0}, True),
        # Of two replicas a quarter is none, and a half is one
        ({"maxSurge": "25%", "maxUnavailable": "25%"}, True),
        ({"maxSurge": "25%", "maxUnavailable": "50%"}, False),
        ({"maxSurge": "0%", "maxUnavailable": "50%"}, False),
    ],
)
def test_shares_of_replicas_are_kept_until_a_gpu_is_missing(
    world: Any, make: Any, given: dict[str, Any], gives_up: bool
) -> None:
    one = world({**SPEC, "rolloutStrategy": given})
    one.step()
    pods = [make.pod(name, one.revision, up=True, routed=True) for name in "ab"]
    one.pods(*pods).step()
    wanted = (given["maxSurge"], given["maxUnavailable"])
    assert strategy(make, one.edit(NEW).step()) == wanted
    waiting = make.pod("c", one.revision, status=make.unschedulable(NO_GPU))
    made = one.pods(*pods, waiting).later(60).step()
    assert strategy(make, made) == ((0, 1) if gives_up else wanted)


def test_a_bad_image_leaves_the_old_revision_and_says_why(serving: Any, make: Any) -> None:
    serving.edit({"engine": {"image": "nowhere/none:1"}}).step()
    status = make.waiting("ImagePullBackOff", "Back-off pulling image", image="nowhere/none:1")
    made = serving.pods(*serving.both, make.pod("c", serving.revision, status=status)).step()
    assert make.condition(made, "Ready")[:2] == ("False", "ImagePullFailed")
    assert "Image nowhere/none:1 cannot be pulled by pod c" in make.condition(made, "Degraded")[2]
    assert made.status["phase"] == "Degraded"
    assert strategy(make, made) == (1, 0)


def test_the_way_back_is_the_old_revision(serving: Any, make: Any) -> None:
    serving.edit({"engine": {"image": "nowhere/none:1"}}).step()
    serving.edit({"engine": {"image": "cuda:1"}}).step()
    assert serving.revision == serving.old
    made = serving.pods(*serving.both).step()
    assert make.condition(made, "Ready")[0] == "True"


def test_a_secret_that_engines_mount_restarts_them(world: Any, make: Any) -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    spec = {
        "model": {"uri": "builtin://kvasir-tiny"},
        "engine": {"env": [{"name": "A", "valueFrom": source}]},
    }
    one = world(spec).see(secrets={"s": "u/1"})
    one.step()
    first = one.revision
    one.step()
    assert one.revision == first
    one.see(secrets={"s": "u/2"}).step()
    assert one.revision != first


def test_another_fleet_secret_reaches_engines_without_a_restart(world: Any, make: Any) -> None:
    one = world()
    one.step()
    first = one.revision
    secret = FleetSecretFile("new\nold\nhash-key:old\n")
    one.settings = replace(make.SETTINGS, fleet_secret=secret)
    one.step()
    assert one.revision == first
    copy = make.manifest(one.plan(), "Secret")
    assert base64.b64decode(copy["data"]["secret"]) == b"new\nold\nhash-key:old\n"


def test_engines_read_the_fleet_secret_from_a_folder_that_changes(world: Any, make: Any) -> None:
    """Kubernetes leaves variables and single files of a Secret as they were."""
    pod = make.manifest(world().plan(), "Deployment")["spec"]["template"]["spec"]
    (engine,) = pod["containers"]
    (mount,) = [each for each in engine["volumeMounts"] if each["name"] == "fleet"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "fleet"]
    at = engine["args"].index("--fleet-secret-file")
    assert engine["args"][at + 1] == f"{mount['mountPath']}/secret"
    assert "subPath" not in mount
    assert volume["secret"]["secretName"] == "kvasir-fleet"
    assert "FLEET" not in str(engine["env"])


def test_a_missing_secret_leaves_what_runs_alone(serving: Any, make: Any) -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    serving.edit({"engine": {"env": [{"name": "A", "valueFrom": source}]}, "replicas": 4})
    made = serving.plan()
    assert "Deployment" not in [each["kind"] for each in made.manifests]
    assert made.scale == 4
    assert make.condition(made, "Ready")[:2] == ("False", "SecretMissing")
    assert made.status["phase"] == "Degraded"


@pytest.mark.parametrize("replicas", [1, 3, 64])
def test_evictions_take_one_at_a_time(world: Any, make: Any, replicas: int) -> None:
    made = world({"model": {"uri": "builtin://kvasir-tiny"}, "replicas": replicas}).plan()
    budget = make.manifest(made, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_a_strategy_of_the_users_is_no_memory_of_missing_gpus(world: Any, make: Any) -> None:
    """From 0/1 to 1/0 in one edit that also changes the pods: the surge is tried first."""
    one = world({**SPEC, "rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1}})
    one.step()
    old = one.revision
    one.pods(*(make.pod(name, old, up=True, routed=True) for name in "ab")).step()
    one.edit(NEW, {"rolloutStrategy": {"maxSurge": 1, "maxUnavailable": 0}})
    made = one.step()
    assert strategy(make, made) == (1, 0)
    assert make.condition(made, "WorkloadReady")[1] == "RollingOut"


def test_a_rollout_beyond_its_deadline_is_no_start_any_more(serving: Any, make: Any) -> None:
    serving.edit(NEW).step()
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    serving.see(deployment={**serving.observed.deployment, "status": {"conditions": [late]}})
    serving.pods(*serving.both, make.pod("c", serving.revision))
    made = serving.plan()
    status, reason, message = make.condition(made, "WorkloadReady")
    assert (status, reason) == ("False", "ProgressDeadlineExceeded")
    assert "None has come up for 2400 s" in message
    assert make.condition(made, "Degraded")[:2] == ("True", "ProgressDeadlineExceeded")
    assert made.status["phase"] == "Degraded"
    serving.pods(make.pod("c", serving.revision), make.pod("d", serving.revision))
    assert make.condition(serving.plan(), "WorkloadReady")[1] == "ProgressDeadlineExceeded"
    up = [make.pod(name, serving.revision, up=True, routed=True) for name in "cd"]
    assert make.condition(serving.pods(*up).plan(), "Ready")[0] == "True"
