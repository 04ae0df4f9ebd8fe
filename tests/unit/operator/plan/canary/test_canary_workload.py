"""A canary in the plan: what runs beside what, and what the status tells."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kvasir.resource import labels
from kvasir.wire.canary_samples import CanarySamples, RevisionSamples
from kvasir_operator.plan.canary.canary_workload import canary_name, rollout_of

SPEC = {
    "model": {"uri": "builtin://kvasir-tiny"},
    "replicas": 4,
    "rollout": {"canary": {"steps": [{"weight": 10}]}},
}
NEW = {"engine": {"args": ["--no-overlap"]}}


def manifests(made: Any) -> dict[str, Any]:
    """The Deployments of a plan by name."""
    return {it["metadata"]["name"]: it for it in made.manifests if it["kind"] == "Deployment"}


def deletions(made: Any) -> list[str]:
    return [it["metadata"]["name"] for it in made.deletions if it["kind"] == "Deployment"]


class Canary:
    """Four engines serve, and the spec has changed."""

    def __init__(self, world: Any, make: Any) -> None:
        self.make = make
        self.world = world(SPEC)
        self.world.step()
        self.old = self.world.revision
        self.stable = [make.pod(name, self.old, up=True, routed=True) for name in "abcd"]
        assert self.world.pods(*self.stable).step().status["phase"] == "Ready"
        self.world.edit(NEW)

    @property
    def new(self) -> str:
        template = self.world.observed.canary_deployment["spec"]["template"]
        return str(template["metadata"]["labels"][labels.REVISION])

    def pod(self, **more: Any) -> dict[str, Any]:
        return self.make.pod("z", self.new, canary=True, **more)

    def serves(self) -> Any:
        """The canary's pod serves, and the split is out."""
        self.world.step()
        self.world.pods(*self.stable, self.pod(up=True, routed=True))
        return self.world.step()

    def counted(self, **canary: int) -> Any:
        split = self.world.observed.status["rollout"]["split"]["id"]
        good = RevisionSamples(answers=4500)
        self.world.see(canary_samples=CanarySamples(split, RevisionSamples(**canary), good))
        return self.world.later(60).step()


@pytest.fixture
def canary(world: Any, make: Any) -> Canary:
    return Canary(world, make)


def test_the_first_revision_is_no_canary(world: Any) -> None:
    one = world(SPEC)
    assert list(manifests(one.step())) == ["m"]
    assert "rollout" not in one.step().status


def test_the_stable_deployment_stays_and_a_second_one_comes(canary: Canary) -> None:
    made = canary.world.step()
    (only,) = manifests(made).values()
    assert only["metadata"]["name"] == canary_name("m")
    assert only["spec"]["replicas"] == 1
    assert only["spec"]["strategy"] == {"type": "Recreate"}
    assert made.scale == 4
    template = only["spec"]["template"]["metadata"]["labels"]
    assert template[labels.TRACK] == labels.CANARY
    assert template.items() >= only["spec"]["selector"]["matchLabels"].items()
    assert labels.TRACK in only["spec"]["selector"]["matchLabels"]
    assert canary.new != canary.old
    assert canary.make.condition(made, "WorkloadReady")[:2] == ("False", "CanaryStarting")
    assert canary.make.condition(made, "Degraded")[0] == "False"
    assert made.status["phase"] == "Updating"


def test_routers_are_told_when_its_pods_serve(canary: Canary) -> None:
    made = canary.serves()
    split = made.status["rollout"]["split"]
    assert (split["revision"], split["weight"]) == (canary.new, 10)
    assert canary.make.condition(made, "WorkloadReady")[:2] == ("False", "CanaryAnalysing")
    assert canary.make.condition(made, "CanaryHealthy")[:2] == ("Unknown", "TooFewSamples")
    assert made.requeue == 5.0


def test_a_good_one_is_promoted_and_its_pods_go_last(canary: Canary) -> None:
    canary.serves()
    made = canary.counted(answers=500)
    assert set(manifests(made)) == {"m", canary_name("m")}
    assert canary.world.revision == canary.new
    assert made.status["rollout"]["phase"] == "Promoting"
    assert "weight" not in made.status["rollout"]["split"]
    assert canary.make.condition(made, "CanaryHealthy")[:2] == ("True", "NoDifference")
    assert canary.make.condition(made, "WorkloadReady")[:2] == ("False", "RollingOut")

    fresh = [canary.make.pod(name, canary.new, up=True, routed=True) for name in "efgh"]
    live = copy.deepcopy(canary.world.observed.deployment)
    live["metadata"]["generation"] = 2
    counts = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), 4)
    live["status"] = {"observedGeneration": 1, **counts}
    canary.world.see(deployment=live).pods(*fresh, canary.pod(up=True, routed=True))
    assert not deletions(canary.world.plan()), "the controller has not seen the template yet"
    live["status"]["observedGeneration"] = 2
    made = canary.world.see(deployment=copy.deepcopy(live)).step()
    assert deletions(made) == [canary_name("m")]
    made = canary.world.pods(*fresh).step()
    assert made.status["phase"] == "Ready"
    assert made.status["rollout"]["phase"] == "Promoted"
    assert list(manifests(made)) == ["m"]


def test_a_bad_one_goes_and_the_stable_revision_stays_for_good(canary: Canary) -> None:
    canary.serves()
    made = canary.counted(answers=400, errors=100)
    assert deletions(made) == [canary_name("m")]
    assert manifests(made) == {}
    assert made.scale == 4
    assert "split" not in made.status["rollout"]
    assert canary.make.condition(made, "CanaryHealthy")[:2] == ("False", "ErrorsIncreased")
    assert canary.make.condition(made, "Degraded")[:2] == ("True", "CanaryRolledBack")
    assert made.status["phase"] == "Degraded"
    again = canary.world.pods(*canary.stable).later(86400).step()
    assert (manifests(again), deletions(again), again.scale) == ({}, [], 4)
    assert canary.world.edit({"replicas": 5}).step().scale == 5


def test_the_way_back_of_a_rolled_back_spec_is_quiet(canary: Canary) -> None:
    canary.serves()
    canary.counted(answers=400, errors=100)
    canary.world.pods(*canary.stable).edit({"engine": {"args": []}})
    made = canary.world.step()
    assert canary.world.revision == canary.old
    assert "rollout" not in made.status
    assert made.status["phase"] == "Ready"


def test_a_retry_by_annotation_begins_again(canary: Canary) -> None:
    canary.serves()
    told = canary.counted(answers=400, errors=100).status["rollout"]["id"]
    resource = copy.deepcopy(canary.world.observed.resource)
    resource["metadata"]["annotations"] = {"kvasir.dev/rollout": f"retry {told}"}
    made = canary.world.pods(*canary.stable).see(resource=resource).step()
    assert made.status["rollout"]["attempt"] == 2
    assert list(manifests(made)) == [canary_name("m")]
    assert canary.world.step().status["rollout"]["attempt"] == 2


@pytest.mark.parametrize("word", ["abort", "abort x.1.1", "ABORT {id}", "abort{id}", "", "  "])
def test_an_annotation_that_says_nothing_does_nothing(canary: Canary, word: str) -> None:
    told = canary.serves().status["rollout"]["id"]
    resource = copy.deepcopy(canary.world.observed.resource)
    text = word.format(id=told)
    resource["metadata"]["annotations"] = {"kvasir.dev/rollout": text}
    made = canary.world.see(resource=resource).step()
    assert made.status["rollout"]["phase"] == "Analysing"


@pytest.mark.parametrize(
    ("after", "phase"), [(44, "Starting"), (45, "RolledBack"), (3600, "RolledBack")]
)
def test_an_image_that_does_not_start_has_a_moment(
    canary: Canary, after: float, phase: str
) -> None:
    canary.world.step()
    bad = canary.pod(status=canary.make.waiting("ImagePullBackOff", "no such image"))
    bad["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z"
    made = canary.world.pods(*canary.stable, bad).later(after).step()
    assert made.status["rollout"]["phase"] == phase
    assert made.requeue == (5.0 if phase == "Starting" else None)


def test_a_pod_without_a_gpu_waits_for_its_deadline(canary: Canary) -> None:
    canary.world.step()
    status = canary.make.unschedulable("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    pod = canary.pod(status=status)
    assert canary.world.pods(*canary.stable, pod).step().status["rollout"]["phase"] == "Starting"
    live = copy.deepcopy(canary.world.observed.canary_deployment)
    condition = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    live["status"] = {"conditions": [condition]}
    made = canary.world.see(canary_deployment=live).step()
    assert made.status["rollout"]["reason"] == "StartFailed"
    assert "Insufficient nvidia.com/gpu" in made.status["rollout"]["message"]


def test_without_a_canary_in_the_spec_all_are_replaced_at_once(canary: Canary) -> None:
    canary.serves()
    resource = copy.deepcopy(canary.world.observed.resource)
    del resource["spec"]["rollout"]
    made = canary.world.see(resource=resource).step()
    assert deletions(made) == [canary_name("m")]
    assert list(manifests(made)) == ["m"]
    assert "rollout" not in made.status


def test_where_nothing_serves_a_new_revision_comes_at_once(canary: Canary) -> None:
    broken = [canary.make.pod(name, canary.old) for name in "abcd"]
    made = canary.world.pods(*broken).step()
    assert list(manifests(made)) == ["m"]
    assert canary.world.revision != canary.old


def test_a_paused_resource_keeps_its_canary_as_it_is(canary: Canary) -> None:
    canary.serves()
    before = canary.world.observed.status["rollout"]
    made = canary.world.edit({"paused": True}).later(86400).step()
    assert made.status["rollout"] == before
    assert (made.manifests, made.deletions, made.scale) == ((), (), None)


def test_replicas_follow_an_autoscaler_meanwhile(canary: Canary) -> None:
    canary.serves()
    made = canary.world.edit({"replicas": 20}).step()
    assert made.scale == 20
    assert manifests(made)[canary_name("m")]["spec"]["replicas"] == 2


def test_a_status_of_a_newer_version_is_none() -> None:
    assert rollout_of({}) is None
    assert rollout_of({"rollout": {"phase": "Later"}}) is None


def test_names_of_canaries_are_no_other_deployments_name() -> None:
    assert canary_name("m") != canary_name("m-canary")
    assert len(canary_name("m" * 63)) <= 63
    assert canary_name("m" * 63) != canary_name("m" * 62)
