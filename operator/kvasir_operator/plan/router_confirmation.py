"""Step 5: do the routers serve every engine that is up? And how long did the start take?"""

from __future__ import annotations

from typing import Any

from kvasir.resource import labels
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.objects import Object, condition, container_status, holds, parse_time
from kvasir_operator.plan.draft import Draft
from kvasir_operator.plan.engine.workload import Workload


def route(draft: Draft, workload: Workload) -> None:
    """Sets RouterReady, status.url and status.startup."""
    up = workload.up
    # Ready as well: the kubelet takes a moment to see the gate
    routed = [pod for pod in up if holds(pod, labels.ROUTED) and holds(pod, "Ready")]
    told = f"Routers serve {len(routed)} of {len(up)} engines"
    if draft.settings.router_url:
        draft.status["url"] = draft.settings.router_url
    if up and len(routed) == len(up):
        verdict: tuple[bool | None, Reason, str] = True, Reason.ROUTED, f"{told}."
    elif not draft.observed.ready_routers:
        namespace = draft.settings.router_namespace
        verdict = None, Reason.NO_ROUTER, f"No router is Ready in namespace {namespace}."
    elif not up:
        verdict = False, Reason.WAITING, "No engine of the newest revision is up."
    else:
        verdict = False, Reason.NOT_ROUTED, f"{told}; the others have not been taken yet."
    draft.conditions.set(ConditionType.ROUTER_READY, *verdict)
    if routed:
        first = min(
            routed, key=lambda pod: str(condition(pod, labels.ROUTED)["lastTransitionTime"])
        )
        draft.status["startup"] = _startup(first)


def _startup(pod: Object) -> Object:
    """Seconds of each part of a pod's start; none for what its container's restart has hidden."""
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
