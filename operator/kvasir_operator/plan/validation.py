"""Step 1: check the resource, and that everything it names exists."""

from __future__ import annotations

from collections.abc import Callable

from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir.resource.ownership.deployment_class import MADE_AGAIN
from kvasir_operator.kinds import RESOURCE_CLAIM_TEMPLATES
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.inherited_values import lost_values
from kvasir_operator.plan.step import PlanInputs, StepResult
from kvasir_operator.spec_facts import device_of, image_of, required_secrets

Verdict = tuple[Reason, str]
_NOT_WATCHED = (Reason.SECRET_MISSING, Reason.CA_BUNDLE_MISSING, Reason.CLAIMS_UNAVAILABLE)
_AGAIN = 30.0
"""Seconds after which to look for what does not exist yet."""


def accept(inputs: PlanInputs) -> StepResult:
    """Set Accepted; a problem keeps engines from being started or changed."""
    problem = next(filter(None, (check(inputs) for check in _CHECKS)), None)
    reason, message = problem or _accepted(inputs)
    # Neither Secrets, ConfigMaps nor other LLMDeployments' names are watched for this one
    missing = reason in _NOT_WATCHED
    waits = missing or inputs.observed.unknown_fallbacks
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


def _class(inputs: PlanInputs) -> Verdict | None:
    """Check that the class is as it was, or is meant to be: engines would be restarted."""
    observed, name = inputs.observed, inputs.settings.class_name
    if observed.class_problem:
        return Reason.CLASS_REPLACED, observed.class_problem
    if observed.inherited is not None and observed.inherited.problem:
        return Reason.PROFILE_MISSING, observed.inherited.problem
    lost = lost_values(observed.status, observed.inherited) if observed.class_made_again else []
    if not lost:
        return None
    return Reason.CLASS_REPLACED, (
        f"LLMDeploymentClass {name} was deleted while its operator did not run, and is made again"
        f" without what it gave this: {', '.join(lost[:8])}. Write it into the class, or remove the"
        f" class' annotation {MADE_AGAIN} to go on without."
    )


def _image(inputs: PlanInputs) -> Verdict | None:
    if inputs.spec.external is not None or image_of(inputs.spec, inputs.settings.images):
        return None
    if inputs.spec.engine.type != "kvasir":
        kind = inputs.spec.engine.type
        told = f"engine.type {kind} has no image of Kvasir's; set engine.image"
        more = "" if kind == "custom" else f", or the class' defaults.images.{kind}"
        return Reason.NO_IMAGE, f"{told}{more}."
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


def _gpu_claim(inputs: PlanInputs) -> Verdict | None:
    claim = inputs.spec.resources.gpu_claim
    if claim is None or claim.device_class_name is None:
        return None
    if RESOURCE_CLAIM_TEMPLATES.plural in inputs.observed.optional:
        return None
    return Reason.CLAIMS_UNAVAILABLE, (
        "resources.gpuClaim.deviceClassName needs a ResourceClaimTemplate, which the operator"
        " cannot make: the cluster has no resource.k8s.io/v1, or the chart's operator.optionalKinds"
        " no resourceclaimtemplates. Add it there, or give resourceClaimTemplateName."
    )


def _ca_bundle(inputs: PlanInputs) -> Verdict | None:
    problem, name = inputs.observed.ca_bundle_problem, inputs.settings.class_name
    if not problem:
        return None
    return Reason.CA_BUNDLE_MISSING, (
        f"{problem} in namespace {inputs.namespace}, and defaults.caBundle of LLMDeploymentClass"
        f" {name} names it; create it, or change the class."
    )


_CHECKS: tuple[Callable[[PlanInputs], Verdict | None], ...] = (
    _name,
    _class,
    _image,
    _secrets,
    _ca_bundle,
    _gpu_claim,
)
