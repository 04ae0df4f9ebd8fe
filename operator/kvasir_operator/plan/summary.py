"""Step 6: sum everything up in three conditions and the phase."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.resource.deployment_status import ConditionType, DeploymentPhase, Reason
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.engine.engine_pods import EnginePods
from kvasir_operator.plan.lora.lora_step import PASSING
from kvasir_operator.plan.step import PlanInputs, StepResult

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
    Reason.CANARY_STARTING,
    Reason.CANARY_ANALYSING,
    Reason.CANARY_PAUSED,
)
"""Reasons that pass when things go their way."""
_CAPACITY = (Reason.INSUFFICIENT_GPUS, Reason.UNSCHEDULABLE, Reason.CLAIM_NOT_BOUND)
"""Reasons that pass when a node or a volume comes."""


_BESIDE = (ConditionType.SCALING_ACTIVE, ConditionType.ADAPTERS_LOADED)
"""Conditions that Ready does not wait for, and Degraded tells of."""


def summarise(
    inputs: PlanInputs, steps: Sequence[StepResult], pods: EnginePods, blocked: bool
) -> StepResult:
    """Set Progressing, Degraded, Ready and the phase from the results of all other steps."""
    conditions = [each for step in steps for each in step.conditions]
    # The steps set their conditions in the order in which these come true
    hindrance = next((each for each in conditions if not _passes(inputs, each, blocked)), None)
    bad = hindrance is not None and hindrance.reason not in _WAITING
    ready = _ready(inputs, hindrance, pods)
    cached = all(each.status for each in conditions if each.type is ConditionType.MODEL_CACHED)
    return StepResult(
        conditions=(
            degraded_by(inputs, hindrance if bad else None, _beside(conditions)),
            normally_false(ConditionType.PROGRESSING, None if bad else hindrance),
            *for_kstatus(hindrance, bad=bad),
            ready,
        ),
        status={"phase": _phase(ready, pods, bad=bad, cached=cached).value},
    )


def for_kstatus(hindrance: ConditionValue | None, *, bad: bool) -> tuple[ConditionValue, ...]:
    """Return the condition by which tools such as Flux tell what waits, as for capacity, from what
    has failed.

    https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md
    """
    if hindrance is None:
        return ()
    stalled = bad and hindrance.reason not in _CAPACITY
    kind = ConditionType.STALLED if stalled else ConditionType.RECONCILING
    return (normally_false(kind, hindrance),)


def _passes(inputs: PlanInputs, condition: ConditionValue, blocked: bool) -> bool:
    """Tell if a condition lets Ready be True."""
    if condition.type in (*_BESIDE, ConditionType.CANARY_HEALTHY):
        return True
    if condition.type is ConditionType.FITS and not blocked:
        return True
    if condition.type is ConditionType.ROUTER_READY and inputs.spec.replicas == 0:
        return True
    return condition.status is True


def _ready(
    inputs: PlanInputs, hindrance: ConditionValue | None, pods: EnginePods
) -> ConditionValue:
    if hindrance is not None:
        return hindrance._replace(type=ConditionType.READY, status=False)
    if inputs.spec.replicas == 0:
        zero = "spec.replicas is 0."
        return ConditionValue(ConditionType.READY, False, Reason.SCALED_TO_ZERO, zero)
    message = f"{len(pods.serving)} engines of the newest revision serve."
    return ConditionValue(ConditionType.READY, True, Reason.SERVING, message)


def _beside(conditions: Sequence[ConditionValue]) -> ConditionValue | None:
    """Return the condition that hinders nothing and is not as it should be."""
    for it in conditions:
        passes = it.type is ConditionType.ADAPTERS_LOADED and it.reason in PASSING
        if it.type in _BESIDE and it.status is False and not passes:
            return it
    return None


def degraded_by(
    inputs: PlanInputs, cause: ConditionValue | None, beside: ConditionValue | None
) -> ConditionValue:
    """Return Degraded: True for `cause` or, without one, for what is wrong but hinders nothing."""
    lost = sorted(inputs.observed.names_lost.items())
    if cause is None and lost:
        held = ", ".join(f"{name!r} ({holder})" for name, holder in lost)
        message = f"Other LLMDeployments claimed these names first: {held}; remove them here."
        return ConditionValue(ConditionType.DEGRADED, True, Reason.NAME_CONFLICT, message)
    unknown = inputs.observed.unknown_fallbacks
    if cause is None and unknown:
        kserves = " and no pod of KServe" if inputs.settings.kserve_namespaces else ""
        message = (
            f"No LLMDeployment{kserves} serves {', '.join(map(repr, unknown))} of spec.fallbacks:"
            " passed over; correct the names, or make those models."
        )
        return ConditionValue(ConditionType.DEGRADED, True, Reason.UNKNOWN_FALLBACK, message)
    return normally_false(ConditionType.DEGRADED, cause or beside)


def normally_false(kind: ConditionType, cause: ConditionValue | None) -> ConditionValue:
    """Return the condition `kind`: True for the reason of `cause`, False without one."""
    if cause is None:
        return ConditionValue(kind, False, Reason.AS_EXPECTED)
    return cause._replace(type=kind, status=True)


def _phase(ready: ConditionValue, pods: EnginePods, *, bad: bool, cached: bool) -> DeploymentPhase:
    if ready.status:
        return DeploymentPhase.READY
    if ready.reason is Reason.SCALED_TO_ZERO:
        return DeploymentPhase.IDLE
    if pods.serving:
        return DeploymentPhase.DEGRADED if bad else DeploymentPhase.UPDATING
    if ready.reason in _CAPACITY:
        return DeploymentPhase.PENDING
    if bad:
        return DeploymentPhase.FAILED
    if not cached:
        return DeploymentPhase.CACHING
    return DeploymentPhase.STARTING if pods.current or pods.old else DeploymentPhase.PENDING
