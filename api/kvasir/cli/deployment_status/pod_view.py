"""A pod in a few words: how it is, and why it does not serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvasir.models.download.progress import parse_progress
from kvasir.resource import labels

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a deployment."""

    name: str
    component: str
    """engine or download."""
    node: str | None
    state: str
    """Kubernetes' phase, or what is more to the point: Terminating, CrashLoopBackOff, ..."""
    ready: bool
    restarts: int
    created: str
    why: str | None
    """Why it does not serve, as a sentence; None when it does or has done its work."""


def view_pod(pod: Object) -> PodView:
    """What `pod` (v1.Pod) is and does."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    state, why = _state(pod, status, containers)
    return PodView(
        name=metadata["name"],
        component=(metadata.get("labels") or {}).get(labels.COMPONENT, ""),
        node=pod["spec"].get("nodeName"),
        state=state,
        ready=_holds(status, "Ready"),
        restarts=sum(int(each.get("restartCount") or 0) for each in containers),
        created=metadata.get("creationTimestamp", ""),
        why=why,
    )


def _state(pod: Object, status: Object, containers: Any) -> tuple[str, str | None]:
    phase = status.get("phase", "Unknown")
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating", "it finishes what it runs and ends"
    if phase == "Succeeded":
        return phase, None
    if phase == "Failed":
        return phase, status.get("message") or _ended(containers) or status.get("reason")
    if (told := _condition(status, "PodScheduled")) and told.get("status") == "False":
        return "Unschedulable", told.get("message")
    for each in containers:
        waiting = (each.get("state") or {}).get("waiting")
        if waiting:
            return waiting.get("reason") or phase, _waits(each, waiting)
    if _holds(status, "Ready"):
        return phase, None
    if _holds(status, "ContainersReady") and not _is_download(pod):
        return "NotRouted", "the engine is ready; not every router serves it yet"
    starts = phase == "Running" and not _is_download(pod)
    return phase, "the engine is not ready yet" if starts else None


def _is_download(pod: Object) -> bool:
    """Its pod does its work and ends; it is never asked whether it is ready."""
    return (pod["metadata"].get("labels") or {}).get(labels.COMPONENT) == labels.DOWNLOAD


def _waits(container: Object, waiting: Object) -> str | None:
    last = _ended([{"state": container.get("lastState") or {}}])
    return last or waiting.get("message")


def _ended(containers: Any) -> str | None:
    """How the first container that ended badly did."""
    for each in containers:
        end = (each.get("state") or {}).get("terminated")
        if end and end.get("exitCode"):
            said = _message(end.get("message") or "")
            how = f"{end.get('reason', 'Error')}, exit status {end['exitCode']}"
            return f"{how}: {said}" if said else how
    return None


def _message(text: str) -> str:
    """A termination message; a download's is its last report."""
    try:
        return parse_progress(text).error or ""
    except ValueError:
        return " ".join(text.split())


def _holds(status: Object, kind: str) -> bool:
    return (_condition(status, kind) or {}).get("status") == "True"


def _condition(status: Object, kind: str) -> Object | None:
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), None)
