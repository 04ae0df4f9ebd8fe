"""Statuses as tools that know kstatus read them, such as Flux.

The rules are those of https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus for
resources that it has no own rules for.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.resource.deployment_status import Reason
from kvasir_operator.plan.failure import Failure
from kvasir_operator.plan.plan import with_failures


def kstatus(resource: dict[str, Any]) -> str:
    """Return the status that kstatus computes of a resource."""
    metadata, status = resource["metadata"], resource.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return "InProgress"
    found = {it["type"]: it["status"] for it in status.get("conditions") or ()}
    if found.get("Reconciling") == "True":
        return "InProgress"
    if found.get("Stalled") == "True":
        return "Failed"
    return "InProgress" if found.get("Ready", "True") != "True" else "Current"


def seen(one: Any) -> str:
    made = one.step()
    told = {"Reconciling", "Stalled"} & {it["type"] for it in made.status["conditions"]}
    assert len(told) == (kstatus(one.observed.resource) != "Current")
    assert {it["observedGeneration"] for it in made.status["conditions"]} == {
        one.observed.resource["metadata"]["generation"]
    }
    return kstatus(one.observed.resource)


def test_from_the_first_apply_to_an_edit(world: Any, make: Any) -> None:
    one = world()
    assert seen(one) == "InProgress"
    one.pods(make.pod(revision=one.revision, up=True, routed=True))
    assert seen(one) == "Current"
    one.edit({"engine": {"config": {"seed": 1}}})
    assert kstatus(one.observed.resource) == "InProgress", "the operator has not looked yet"
    assert seen(one) == "InProgress"


def test_capacity_may_come_and_an_image_does_not(world: Any, make: Any) -> None:
    one = world()
    one.step()
    no_gpu = make.unschedulable("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    assert seen(one.pods(make.pod(revision=one.revision, status=no_gpu))) == "InProgress"
    no_image = make.waiting("ImagePullBackOff", "not found")
    assert seen(one.pods(make.pod(revision=one.revision, status=no_image))) == "Failed"


def test_a_spec_that_is_refused_has_failed(world: Any) -> None:
    assert seen(world({"model": {"uri": "hf://org/m"}, "replicas": -1})) == "Failed"
    assert seen(world({"model": {"uri": "hf://org/m"}, "engine": {"type": "vllm"}})) == "Failed"


@pytest.mark.parametrize(("passing", "told"), [(True, "InProgress"), (False, "Failed")])
def test_a_write_that_fails_takes_the_place_of_what_was_told(
    world: Any, make: Any, passing: bool, told: str
) -> None:
    one = world()
    one.step()
    no_image = make.waiting("ImagePullBackOff", "not found")
    made = one.pods(make.pod(revision=one.revision, status=no_image)).step()
    failure = Failure("x", "No.", Reason.APPLY_FAILED, passing)
    status = with_failures(made.status, [failure], one.observed)
    assert kstatus({**one.observed.resource, "status": status}) == told
    types = [it["type"] for it in status["conditions"]]
    assert len(types) == len(set(types))


def test_a_model_at_rest_is_not_ready_and_nothing_is_wrong(world: Any) -> None:
    """kstatus waits for ever for what is Ready: False. Tools are told by docs/gitops.md what
    ScaledToZero means."""
    one = world({"model": {"uri": "builtin://kvasir-tiny"}, "replicas": 0})
    made = one.step()
    ready = next(it for it in made.status["conditions"] if it["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ScaledToZero")
    assert not {"Stalled", "Reconciling"} & {it["type"] for it in made.status["conditions"]}
