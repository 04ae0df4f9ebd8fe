"""Values that the class gives: in the status, and as an event when they change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvasir.kube.objects import Object, label
from kvasir.resource import labels
from kvasir.resource.class_defaults.inheritance import Inheritance
from kvasir.resource.deployment_status import MAX_MESSAGE, Reason
from kvasir_operator.plan.observed import Observed
from kvasir_operator.plan.step import PlanInputs, StepResult

CLASS_CHANGED = "ClassChanged"
"""Reason of the event."""
_MAX_FIELDS = 160
_MAX_NAME = 256
_SHOWN = 8
_KEEPING = (Reason.PROFILE_MISSING, Reason.CLASS_REPLACED)
"""Reasons of Accepted while which engines keep what the class gave them before."""


def tell_inherited(inputs: PlanInputs, accepted: StepResult) -> StepResult:
    """Set status.inherited: what engines have, or will have as soon as nothing blocks them."""
    if any(each.reason in _KEEPING for each in accepted.conditions):
        kept = inputs.observed.status.get("inherited")
        return StepResult(status={"inherited": kept} if kept else {})
    told = inherited_status(inputs.observed.inherited)
    return StepResult(status={"inherited": told} if told else {})


def inherited_status(inherited: Inheritance | None) -> Object:
    """Return what the status says of an inheritance; empty if nothing is inherited."""
    if inherited is None or not inherited.values:
        return {}
    fields = [
        {
            "field": each.field[:_MAX_NAME],
            "value": each.value[:MAX_MESSAGE],
            "source": each.source[:_MAX_NAME],
        }
        for each in inherited.values[:_MAX_FIELDS]
    ]
    profile = {"profile": inherited.profile} if inherited.profile else {}
    return {**profile, "fields": fields}


def lost_values(before: Mapping[str, Any], inherited: Inheritance | None) -> list[str]:
    """Return the fields that a status says are inherited, and that are not so now."""
    now = values_of({"inherited": inherited_status(inherited)})
    return [name for name, value in values_of(before).items() if now.get(name) != value]


def class_change(before: Mapping[str, Any], after: Mapping[str, Any], restarts: bool) -> str:
    """Return the message of the event between two statuses of the same spec; "" = there is none."""
    old, new = values_of(before), values_of(after)
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if not names or before.get("observedGeneration") != after.get("observedGeneration"):
        return ""
    turns = [f"{it}: {old.get(it, 'nothing')} is {new.get(it, 'nothing')} now" for it in names]
    more = f" and {len(turns) - _SHOWN} more" if len(turns) > _SHOWN else ""
    effect = "Engines are replaced by the rollout." if restarts else "No engine is restarted."
    changes = "; ".join(turns[:_SHOWN])
    return f"LLMDeploymentClass {after.get('className')} has changed {changes}{more}. {effect}"


def restarts_engines(manifests: Iterable[Object], observed: Observed) -> bool:
    """Tell if Deployments get another revision of their pods."""
    live = (observed.deployment, observed.canary_deployment)
    revisions = {it["metadata"]["name"]: _revision(it) for it in live if it is not None}
    wanted = [it for it in manifests if it["kind"] == "Deployment"]
    return any(_revision(it) != revisions.get(it["metadata"]["name"]) for it in wanted)


def _revision(deployment: Object) -> str:
    return label(deployment["spec"]["template"], labels.REVISION)


def values_of(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the inherited values of a status by their fields."""
    fields = (status.get("inherited") or {}).get("fields") or ()
    return {str(it["field"]): str(it["value"]) for it in fields}
