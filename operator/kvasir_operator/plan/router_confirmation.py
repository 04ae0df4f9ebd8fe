"""Step 5: check that the routers serve every ready engine, and time the start."""

from __future__ import annotations

from typing import Any

from kvasir.kube.objects import Object, condition, container_status, holds, parse_time
from kvasir.resource import labels
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.engine.workload import EnginePods
from kvasir_operator.plan.step import PlanInputs, StepResult


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
        conditions=(ConditionValue(ConditionType.ROUTER_READY, *verdict),), status=status
    )


def _verdict(inputs: PlanInputs, routed: int, up: int) -> tuple[bool | None, Reason, str]:
    told = f"Routers serve {routed} of {up} engines"
    if up and routed == up:
        return True, Reason.ROUTED, f"{told}."
    if not inputs.observed.ready_routers:
        namespace = inputs.settings.router_namespace
        return None, Reason.NO_ROUTER, f"No router is Ready in namespace {namespace}."
    if not up:
        return False, Reason.WAITING, "No engine of the newest revision is up."
    return False, Reason.NOT_ROUTED, f"{told}; the others have not been taken yet."


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
