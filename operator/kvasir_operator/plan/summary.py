"""Step 6: everything in two conditions and one word."""

from __future__ import annotations

from kvasir.resource.deployment_status import ConditionType, DeploymentPhase, Reason
from kvasir_operator.plan.draft import Draft
from kvasir_operator.plan.engine.workload import Workload

_IN_ORDER = (
    ConditionType.ACCEPTED,
    ConditionType.MODEL_CACHED,
    ConditionType.FITS,
    ConditionType.WORKLOAD_READY,
    ConditionType.ROUTER_READY,
)
_WAITING = (
    Reason.WAITING,
    Reason.STARTING,
    Reason.ROLLING_OUT,
    Reason.SURGE_UNSCHEDULABLE,
    Reason.DOWNLOADING,
    Reason.DOWNLOAD_PENDING,
    Reason.NOT_ROUTED,
    Reason.NO_ROUTER,
    Reason.UNKNOWN,
)
"""Reasons that pass when things go their way."""
_CAPACITY = (Reason.INSUFFICIENT_GPUS, Reason.UNSCHEDULABLE, Reason.CLAIM_NOT_BOUND)
"""Reasons that pass when a node or a volume comes."""


def summarise(draft: Draft, workload: Workload) -> None:
    """Sets Progressing, Degraded, Ready and the phase."""
    conditions = draft.conditions
    hindrance = next((each for each in _IN_ORDER if not _passes(draft, each)), None)
    reason = conditions.reason(hindrance) if hindrance else Reason.AS_EXPECTED
    message = conditions.message(hindrance) if hindrance else ""
    bad = hindrance is not None and reason not in _WAITING
    _set_degraded(draft, bad, reason, message)
    moving = hindrance is not None and not bad
    conditions.set(
        ConditionType.PROGRESSING,
        moving,
        reason if moving else Reason.AS_EXPECTED,
        message if moving else "",
    )
    zero = workload.wanted == 0
    ready = hindrance is None and not zero
    if ready:
        reason = Reason.SERVING
        message = f"{len(workload.serving)} engines of the newest revision serve."
    elif hindrance is None:
        reason, message = Reason.SCALED_TO_ZERO, "spec.replicas is 0."
    conditions.set(ConditionType.READY, ready, reason, message)
    draft.status["phase"] = _phase(draft, workload, bad, reason).value


def _passes(draft: Draft, kind: ConditionType) -> bool:
    """Whether a condition lets Ready be True."""
    if kind is ConditionType.FITS:
        return draft.conditions.is_true(kind) or not draft.blocked
    if kind is ConditionType.ROUTER_READY and draft.deployment.spec.replicas == 0:
        return True
    return draft.conditions.is_true(kind)


def _set_degraded(draft: Draft, bad: bool, reason: Reason, message: str) -> None:
    lost = sorted(draft.observed.name_owners)
    if not bad and lost:
        reason = Reason.NAME_CONFLICT
        owners = ", ".join(f"{name!r} ({draft.observed.name_owners[name]})" for name in lost)
        message = f"Older LLMDeployments have these aliases: {owners}; remove them here."
    degraded = bad or bool(lost)
    draft.conditions.set(
        ConditionType.DEGRADED,
        degraded,
        reason if degraded else Reason.AS_EXPECTED,
        message if degraded else "",
    )


def _phase(draft: Draft, workload: Workload, bad: bool, reason: Reason) -> DeploymentPhase:
    if draft.conditions.is_true(ConditionType.READY):
        return DeploymentPhase.READY
    if reason is Reason.SCALED_TO_ZERO:
        return DeploymentPhase.IDLE
    if workload.serving:
        return DeploymentPhase.DEGRADED if bad else DeploymentPhase.UPDATING
    if reason in _CAPACITY:
        return DeploymentPhase.PENDING
    if bad:
        return DeploymentPhase.FAILED
    if draft.conditions.is_false(ConditionType.MODEL_CACHED):
        return DeploymentPhase.CACHING
    return DeploymentPhase.STARTING if workload.current or workload.old else DeploymentPhase.PENDING
