"""View of what makes a deployment's pods: a Deployment, its canary's, or the Job of a download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvasir.kube.objects import condition, holds, label, name_of
from kvasir.resource import labels

Object = Mapping[str, Any]

_TEMPLATE_HASH = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """One Deployment or Job."""

    kind: Literal["Deployment", "Job"]
    name: str
    role: str
    """engine, canary or download."""
    desired: int
    ready: int
    updated: int
    revision: str | None
    """Revision of its pods; None of a Job."""
    why: str | None
    """Reason why it makes no pods or has given up; None while there is none."""


def view_workload(it: Object) -> WorkloadView:
    """Return the view of `it`: an apps/v1 Deployment, or a batch/v1 Job."""
    spec, status = it["spec"], it.get("status") or {}
    if "completions" in spec or "backoffLimit" in spec:
        failed = condition(it, "Failed") if holds(it, "Failed") else {}
        done = int(status.get("succeeded") or 0)
        why = failed.get("message") or failed.get("reason")
        return WorkloadView("Job", name_of(it), labels.DOWNLOAD, 1, done, done, None, why)
    is_canary = label(it["spec"]["template"], labels.TRACK) == labels.CANARY
    return WorkloadView(
        kind="Deployment",
        name=name_of(it),
        role=labels.CANARY if is_canary else labels.ENGINE,
        desired=int(spec.get("replicas", 1)),
        ready=int(status.get("readyReplicas") or 0),
        updated=int(status.get("updatedReplicas") or 0),
        revision=label(it["spec"]["template"], labels.REVISION) or None,
        why=_problem(it),
    )


def workload_of(pod: Object) -> str | None:
    """Return the name of the Deployment or Job that made `pod`; None of one that nothing made."""
    for owner in pod["metadata"].get("ownerReferences") or ():
        name = str(owner.get("name", ""))
        if owner.get("kind") == "ReplicaSet":
            return name.removesuffix(f"-{label(pod, _TEMPLATE_HASH)}")
        if owner.get("kind") == "Job":
            return name
    return None


def _problem(deployment: Object) -> str | None:
    if holds(deployment, "ReplicaFailure"):
        return str(condition(deployment, "ReplicaFailure").get("message") or "ReplicaFailure")
    progressing = condition(deployment, "Progressing")
    if progressing.get("status") == "False":
        return str(progressing.get("message") or progressing.get("reason"))
    return None
