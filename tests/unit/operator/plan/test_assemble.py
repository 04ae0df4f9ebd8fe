"""From the results of the steps to one plan."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.observed import parse_resource
from kvasir_operator.plan.plan import assemble
from kvasir_operator.plan.step import PlanInputs, StepResult

STEPS = (
    StepResult(
        manifests=({"kind": "A"},),
        conditions=(ConditionValue(ConditionType.ACCEPTED, True, Reason.ACCEPTED),),
        requeue=30.0,
    ),
    StepResult(deletions=({"kind": "D"},), status={"phase": "Pending"}),
    StepResult(
        manifests=({"kind": "B"}, {"kind": "C"}),
        conditions=(ConditionValue(ConditionType.FITS, None, Reason.UNKNOWN, "why"),),
        requeue=5.0,
    ),
)


def inputs(world: Any, **spec: Any) -> PlanInputs:
    one = world({"model": {"uri": "builtin://kvasir-tiny"}, **spec})
    deployment = parse_resource(one.observed.resource)
    assert not isinstance(deployment, str)
    return PlanInputs(deployment, one.observed, one.settings)


def test_results_are_joined_in_the_order_of_the_steps(world: Any, make: Any) -> None:
    note = ({"kind": "Job"}, {"a": "b"})
    made = assemble(inputs(world), STEPS, 2, note)
    assert [each["kind"] for each in made.manifests] == ["A", "B", "C"]
    assert made.deletions == ({"kind": "D"},)
    assert (made.scale, made.note) == (2, note)
    assert [each["type"] for each in made.status["conditions"]] == ["Accepted", "Fits"]
    assert make.condition(made, "Fits") == ("Unknown", "Unknown", "why")
    assert (made.status["phase"], made.status["observedGeneration"]) == ("Pending", 1)


def test_the_earliest_look_counts(world: Any) -> None:
    assert assemble(inputs(world), STEPS, None, None).requeue == 5.0
    assert assemble(inputs(world), STEPS[1:2], None, None).requeue is None


def test_of_a_paused_deployment_only_the_status_changes(world: Any) -> None:
    made = assemble(inputs(world, paused=True), STEPS, 2, ({}, {}))
    assert made.status["phase"] == "Pending"
    assert (made.manifests, made.deletions, made.scale) == ((), (), None)
    assert (made.note, made.requeue) == (None, None)


def test_results_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        STEPS[0].blocked = True  # type: ignore[misc]
