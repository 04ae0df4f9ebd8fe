"""View of a pod: its state, and why it does not serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvasir.cli.deployment_status.workload_view import workload_of
from kvasir.kube.objects import (
    condition,
    container_statuses,
    holds,
    is_terminating,
    label,
    name_of,
    namespace_of,
)
from kvasir.kube.pod_problems import describe_exit, pod_problem
from kvasir.models.download.progress import parse_progress
from kvasir.resource import labels

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a deployment, or a router's."""

    namespace: str
    name: str
    component: str
    """engine, download or router."""
    workload: str | None
    """Deployment or Job that made it."""
    node: str | None
    state: str
    """Kubernetes' phase, or what is more to the point: Terminating, CrashLoopBackOff, ..."""
    ready: bool
    restarts: int
    created: str
    why: str | None
    """Reason for not serving; None when it does or has done its work."""
    image: str | None
    ip: str | None
    revision: str | None
    """Revision of the deployment that it runs."""


def view_pod(pod: Object) -> PodView:
    """Return the view of `pod` (v1.Pod)."""
    state, why = _state(pod)
    return PodView(
        namespace=namespace_of(pod),
        name=name_of(pod),
        workload=workload_of(pod),
        component=label(pod, labels.COMPONENT),
        node=pod["spec"].get("nodeName"),
        state=state,
        ready=holds(pod, "Ready"),
        restarts=sum(int(each.get("restartCount") or 0) for each in container_statuses(pod)),
        created=pod["metadata"].get("creationTimestamp", ""),
        why=why,
        image=next((each.get("image") for each in pod["spec"].get("containers") or ()), None),
        ip=(pod.get("status") or {}).get("podIP"),
        revision=label(pod, labels.REVISION) or None,
    )


def _state(pod: Object) -> tuple[str, str | None]:
    status = pod.get("status") or {}
    phase = status.get("phase", "Unknown")
    if is_terminating(pod):
        return "Terminating", "it finishes what it runs and ends"
    if phase == "Succeeded":
        return phase, None
    if phase == "Failed":
        return phase, status.get("message") or _ended(pod) or status.get("reason")
    states = (each.get("state") or {} for each in container_statuses(pod))
    waiting: Object = next((each["waiting"] for each in states if each.get("waiting")), {})
    state = waiting.get("reason") or phase
    if (problem := pod_problem(pod)) is not None:
        unscheduled = condition(pod, "PodScheduled").get("status") == "False"
        return "Unschedulable" if unscheduled else state, problem.detail or problem.message
    if waiting or holds(pod, "Ready"):
        return state, waiting.get("message")
    if label(pod, labels.COMPONENT) == labels.DOWNLOAD:
        return phase, None  # it does its work and ends; it is never asked whether it is ready
    if label(pod, labels.COMPONENT) == labels.ROUTER:
        return phase, "the router is not ready yet"
    if holds(pod, "ContainersReady"):
        return "NotRouted", "the engine is ready; not every router serves it yet"
    return phase, "the engine is not ready yet" if phase == "Running" else None


def _ended(pod: Object) -> str | None:
    """Say how the first container that ended badly did."""
    for each in container_statuses(pod):
        end = (each.get("state") or {}).get("terminated")
        if end and end.get("exitCode"):
            said = _message(end.get("message") or "")
            return f"{describe_exit(end)}: {said}" if said else describe_exit(end)
    return None


def _message(text: str) -> str:
    """Return the error in a termination message; a download's is its last report."""
    try:
        return parse_progress(text).error or ""
    except ValueError:
        return " ".join(text.split())
