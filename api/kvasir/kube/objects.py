"""Readers of Kubernetes objects, which are plain dictionaries here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

Object = dict[str, Any]


def name_of(it: Mapping[str, Any]) -> str:
    """Return metadata.name."""
    return str(it["metadata"]["name"])


def namespace_of(it: Mapping[str, Any]) -> str:
    """Return metadata.namespace; "" for an object without one."""
    return str(it["metadata"].get("namespace", ""))


def is_terminating(it: Mapping[str, Any]) -> bool:
    """Tell if the object is being deleted."""
    return bool(it["metadata"].get("deletionTimestamp"))


def annotation(it: Mapping[str, Any], name: str) -> str:
    """Return an annotation's value; "" where there is none."""
    return str((it["metadata"].get("annotations") or {}).get(name, ""))


def label(it: Mapping[str, Any], name: str) -> str:
    """Return a label's value; "" where there is none."""
    return str((it["metadata"].get("labels") or {}).get(name, ""))


def condition(it: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of that type; empty where there is none."""
    for each in (it.get("status") or {}).get("conditions") or ():
        if each.get("type") == kind:
            return dict(each)
    return {}


def holds(it: Mapping[str, Any], kind: str) -> bool:
    """Tell if the condition of that type is True."""
    return condition(it, kind).get("status") == "True"


def container_statuses(pod: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the statuses of a pod's containers; none before they have any."""
    return (pod.get("status") or {}).get("containerStatuses") or ()


def init_container_statuses(pod: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the statuses of the containers that run before the others; none before they have
    any."""
    return (pod.get("status") or {}).get("initContainerStatuses") or ()


def container_status(pod: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    """Return the status of one container; empty before it has one."""
    return next((it for it in container_statuses(pod) if it.get("name") == container), {})


def container_run(pod: Mapping[str, Any], container: str) -> str:
    """Return the name of one run of a container, as routers have it: UID/RESTARTS; "" before it has
    a status."""
    status = container_status(pod, container)
    return f"{pod['metadata']['uid']}/{status.get('restartCount', 0)}" if status else ""


def parse_time(text: str) -> datetime:
    """Parse RFC 3339 as Kubernetes writes it."""
    return datetime.fromisoformat(text)
