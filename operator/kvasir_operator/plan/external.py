"""Plan of a model that servers of others serve: nothing is made, and routers tell how they are."""

from __future__ import annotations

from kvasir.resource.deployment_status import ConditionType, DeploymentPhase, Reason
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.observed import UpstreamState
from kvasir_operator.plan.step import PlanInputs, StepResult
from kvasir_operator.plan.summary import degraded_by, for_kstatus, normally_false

_LOOK_AGAIN = 10.0
"""Seconds after which to look again: no watch tells how a server of others is."""
_SHOWN = 4
"""Servers whose problems are told."""


def watch_upstreams(inputs: PlanInputs, accepted: StepResult) -> StepResult:
    """Set WorkloadReady, RouterReady, Progressing, Degraded, Ready and the counts."""
    states = inputs.observed.upstreams
    ready = sum(each.is_ready for each in states)
    verdict = ConditionValue(ConditionType.WORKLOAD_READY, *_verdict(inputs))
    routed = ConditionValue(ConditionType.ROUTER_READY, *_routed(inputs, ready))
    told = (verdict, routed) if verdict.reason is Reason.UPSTREAM_UNREACHABLE else (routed, verdict)
    conditions = (*accepted.conditions, *told)
    hindrance = next((each for each in conditions if each.status is not True), None)
    bad = hindrance is not None and hindrance.reason not in (Reason.WAITING, Reason.NO_ROUTER)
    summed = ConditionValue(ConditionType.READY, True, Reason.SERVING, _told(states))
    if hindrance is not None:
        summed = hindrance._replace(type=ConditionType.READY, status=False)
    status: dict[str, object] = {
        "phase": _phase(hindrance is None, ready, bad=bad).value,
        "replicas": len(states),
        "readyReplicas": ready,
        "updatedReplicas": len(states),
    }
    if inputs.settings.router_url:
        status["url"] = inputs.settings.router_url
    return StepResult(
        conditions=(
            verdict,
            routed,
            degraded_by(inputs, hindrance if bad else None, None),
            normally_false(ConditionType.PROGRESSING, None if bad else hindrance),
            *for_kstatus(hindrance, bad=bad),
            summed,
        ),
        status=status,
        requeue=_LOOK_AGAIN,
    )


def _verdict(inputs: PlanInputs) -> tuple[bool | None, Reason, str]:
    states = inputs.observed.upstreams
    problems = [f"{each.url}: {each.problem}" for each in states if each.problem]
    if not inputs.settings.router_gate:
        return True, Reason.NOT_NEEDED, "The operator asks no router (--no-router-gate)."
    if problems:
        more = f"; {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        message = f"{_told(states)} {'; '.join(problems[:_SHOWN])}{more}."
        return False, Reason.UPSTREAM_UNREACHABLE, message
    if not states:
        return False, Reason.WAITING, f"{_told(states)} No pod has the labels of external.pods."
    if all(each.is_ready for each in states):
        return True, Reason.AVAILABLE, _told(states)
    return False, Reason.WAITING, f"{_told(states)} Routers have not tried the others yet."


def _routed(inputs: PlanInputs, ready: int) -> tuple[bool | None, Reason, str]:
    observed, settings = inputs.observed, inputs.settings
    if not settings.router_gate:
        return True, Reason.NOT_NEEDED, "The operator asks no router (--no-router-gate)."
    if not observed.ready_routers:
        message = f"No router is Ready in namespace {settings.router_namespace}; start routers."
        return None, Reason.NO_ROUTER, message
    if len(observed.silent_routers) >= observed.ready_routers:
        message = f"No Ready router answers the operator on port {settings.router_admin_port}."
        return False, Reason.ROUTERS_SILENT, message
    if ready:
        return True, Reason.ROUTED, _told(observed.upstreams)
    return False, Reason.WAITING, _told(observed.upstreams)


def _told(states: tuple[UpstreamState, ...]) -> str:
    return f"{sum(each.is_ready for each in states)} of {len(states)} servers can be reached."


def _phase(is_ready: bool, ready: int, *, bad: bool) -> DeploymentPhase:
    if is_ready:
        return DeploymentPhase.READY
    if ready:
        return DeploymentPhase.DEGRADED if bad else DeploymentPhase.UPDATING
    return DeploymentPhase.FAILED if bad else DeploymentPhase.STARTING
