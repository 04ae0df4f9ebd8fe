"""Step 1: check the resource, and that everything it names exists."""

from __future__ import annotations

from collections.abc import Callable

from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.step import PlanInputs, StepResult
from kvasir_operator.spec_facts import device_of, image_of, required_secrets

Verdict = tuple[Reason, str]
_AGAIN = 30.0
"""Seconds after which to look for what does not exist yet."""


def accept(inputs: PlanInputs) -> StepResult:
    """Set Accepted; a problem keeps engines from being started or changed."""
    problem = next(filter(None, (check(inputs) for check in _CHECKS)), None)
    reason, message = problem or _accepted(inputs)
    # Neither Secrets nor other LLMDeployments' names are watched for this one
    waits = reason is Reason.SECRET_MISSING or inputs.observed.unknown_fallbacks
    return StepResult(
        conditions=(ConditionValue(ConditionType.ACCEPTED, problem is None, reason, message),),
        blocked=problem is not None,
        requeue=_AGAIN if waits else None,
    )


def _accepted(inputs: PlanInputs) -> Verdict:
    if inputs.spec.paused:
        return Reason.PAUSED, "spec.paused is set: nothing but the status is changed."
    if inputs.observed.unserved:
        return Reason.NOT_SERVED, (
            f"{inputs.observed.unserved} Until then class {inputs.settings.class_name}, which has"
            " taken it, goes on serving it."
        )
    if inputs.observed.crd_lacks:
        return Reason.CRD_OUTDATED, (
            "The installed CustomResourceDefinition is older than the operator and lacks"
            f" {', '.join(inputs.observed.crd_lacks[:8])}; upgrade the chart with crds.enabled."
        )
    if unknown := inputs.deployment.unknown_fields:
        return Reason.UNKNOWN_FIELDS, (
            "The operator is older than the CustomResourceDefinition and does not know"
            f" {', '.join(unknown[:8])}; they are kept and have no effect. Upgrade the operator."
        )
    return Reason.ACCEPTED, ""


def _name(inputs: PlanInputs) -> Verdict | None:
    name = inputs.deployment.served_names[0]
    holder = inputs.observed.names_lost.get(name)
    if holder is None:
        return None
    return Reason.NAME_CONFLICT, (
        f"Model name {name!r} belongs to LLMDeployment {holder}, which claimed it first;"
        " give spec.model.name another value."
    )


def _image(inputs: PlanInputs) -> Verdict | None:
    if inputs.spec.external is not None or image_of(inputs.spec, inputs.settings.images):
        return None
    if inputs.spec.engine.type != "kvasir":
        kind = inputs.spec.engine.type
        return Reason.NO_IMAGE, f"engine.type {kind} has no image of Kvasir's; set engine.image."
    device = device_of(inputs.spec)
    return Reason.NO_IMAGE, (
        f"The operator has no engine image for device {device} (--image-{device});"
        " set spec.engine.image."
    )


def _secrets(inputs: PlanInputs) -> Verdict | None:
    for name in sorted(required_secrets(inputs.spec)):
        if inputs.observed.secrets.get(name) is None:
            return Reason.SECRET_MISSING, (
                f"Secret {name!r} does not exist in namespace {inputs.namespace}; create it."
            )
    return None


_CHECKS: tuple[Callable[[PlanInputs], Verdict | None], ...] = (_name, _image, _secrets)
