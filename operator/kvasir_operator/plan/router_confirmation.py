"""Step 5: check that the routers serve every ready engine, and time the start."""

from __future__ import annotations

from typing import Any

from kvasir.kube.objects import Object, condition, container_status, holds, parse_time
from kvasir.resource import labels
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.engine.engine_pods import EnginePods
from kvasir_operator.plan.step import PlanInputs, StepResult

_LOOK_AGAIN = 5.0
"""Seconds after which to look again while routers have not taken an engine."""


def confirm_routing(inputs: PlanInputs, pods: EnginePods) -> StepResult:
    """Set RouterReady, status.url and status.startup."""
    # Ready as well: the kubelet takes a moment to see the gate
    routed = [pod for pod in pods.up if holds(pod, labels.ROUTED) and holds(pod, "Ready")]
    status: dict[str, object] = {}
    if inputs.settings.router_url:
        status["url"] = inputs.settings.router_url
    if routed:
        status["startup"] = _startup(min(routed, key=_routed_since))
    verdict = _verdict(inputs, len(routed), len(pods.up))
    return StepResult(
        conditions=(ConditionValue(ConditionType.ROUTER_READY, *verdict),),
        status=status,
        requeue=_LOOK_AGAIN if verdict[1] is Reason.NOT_ROUTED else None,
    )


def _verdict(inputs: PlanInputs, routed: int, up: int) -> tuple[bool | None, Reason, str]:
    if not inputs.settings.router_gate:
        return True, Reason.NOT_NEEDED, "The operator asks no router (--no-router-gate)."
    ready, silent = inputs.observed.ready_routers, len(inputs.observed.silent_routers)
    told = f"Routers serve {routed} of {up} engines"
    if up and routed == up:
        return True, Reason.ROUTED, f"{told}.{_about_silent(inputs)}"
    if not ready:
        return None, Reason.NO_ROUTER, _no_router(inputs)
    if not up:
        return False, Reason.WAITING, "No engine of the newest revision is up."
    if silent >= ready:
        return False, Reason.ROUTERS_SILENT, f"{told}.{_about_silent(inputs)}"
    message = f"{told}; the others have not been taken yet.{_about_silent(inputs)}"
    return False, Reason.NOT_ROUTED, message


def _no_router(inputs: PlanInputs) -> str:
    namespace = inputs.settings.router_namespace
    return (
        f"No router is Ready in namespace {namespace}: new engines wait, and rollouts with them;"
        " start routers, or run the operator with --no-router-gate where there shall be none."
    )


def _about_silent(inputs: PlanInputs) -> str:
    names = inputs.observed.silent_routers
    if not names:
        return ""
    waited = (
        "nothing is rolled out"
        if len(names) >= inputs.observed.ready_routers
        else "they are not waited for"
    )
    shown, port = ", ".join(names[:4]), inputs.settings.router_admin_port
    return (
        f" Ready routers that do not answer the operator on port {port} ({shown}): {waited};"
        " see their logs and the network policies between."
    )


def _routed_since(pod: Object) -> str:
    return str(condition(pod, labels.ROUTED)["lastTransitionTime"])


def _startup(pod: Object) -> Object:
    """Return the seconds of each part of a pod's start, without those that a restart has hidden."""
    status = container_status(pod, labels.ENGINE_CONTAINER)
    times = [
        pod["metadata"].get("creationTimestamp"),
        condition(pod, "PodScheduled").get("lastTransitionTime"),
        ((status.get("state") or {}).get("running") or {}).get("startedAt"),
        condition(pod, "ContainersReady").get("lastTransitionTime"),
        condition(pod, labels.ROUTED).get("lastTransitionTime"),
    ]
    names = ("scheduleSeconds", "pullSeconds", "loadSeconds", "routeSeconds")
    return {
        name: seconds
        for name, begin, end in zip(names, times, times[1:], strict=False)
        if (seconds := _seconds(begin, end)) is not None
    }


def _seconds(begin: Any, end: Any) -> int | None:
    if not begin or not end:
        return None
    return max(0, round((parse_time(end) - parse_time(begin)).total_seconds()))
