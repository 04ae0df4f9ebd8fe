"""Causes that keep pods from running, read from their statuses by pure checks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvasir.kube.objects import (
    Object,
    condition,
    container_statuses,
    holds,
    init_container_statuses,
    name_of,
    parse_time,
)
from kvasir.resource import labels
from kvasir.resource.deployment_status import Reason

_NO_GPU = re.compile(
    r"Insufficient (?!rdma/|vpc\.amazonaws\.com/)[a-z0-9.-]+/|cannot allocate all claims"
)
"""The scheduler's words on extended resources, of which an engine has its GPUs' and perhaps
networks', and on claims."""
_ELSEWHERE = (
    "didn't match PersistentVolume's node affinity",
    "volume node affinity conflict",  # the same, as Kubernetes said it up to 1.33
    "node(s) had no available volume zone",
)
_UNBOUND = (
    "unbound immediate PersistentVolumeClaims",
    "didn't find available persistent volumes to bind",
    "did not have enough free storage",
    "bound to non-existent pv(s)",
    "persistentvolumeclaim",
)
_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_MOUNT_SECONDS = 120
_SHOWN = 400


@dataclass(frozen=True, slots=True)
class Problem:
    """Cause that keeps a pod from running."""

    reason: Reason
    message: str
    """A sentence that names the pod."""
    passing: bool = False
    """It may pass without a change of the resource: capacity may come."""
    detail: str = ""
    """The cause in Kubernetes' words alone, for where the pod is named already."""


def pod_problem(
    pod: Mapping[str, Any], containers: Collection[str] | None = None
) -> Problem | None:
    """Return the first thing that is wrong with `pod` and its `containers`, by default all of them,
    also those that run before the others; None when it runs, or has only just begun."""
    statuses = (*init_container_statuses(pod), *container_statuses(pod))
    found = (
        _container_problem(_told(pod, it), it)
        for it in statuses
        if containers is None or it.get("name") in containers
    )
    return _scheduling_problem(pod) or next(filter(None, found), None)


def worst(problems: Iterable[Problem | None]) -> Problem | None:
    """Return a problem that will not pass before one that may."""
    return min(filter(None, problems), key=lambda each: each.passing, default=None)


def lacks_gpu_since(pod: Object) -> datetime | None:
    """Return the time since when a pod has had no node for want of GPUs, whatever else stands in
    its way: on the only node with its volume it is GPUs that are missing. None if they are not."""
    scheduled = condition(pod, "PodScheduled")
    since = scheduled.get("lastTransitionTime")
    if scheduled.get("status") != "False" or not _NO_GPU.search(str(scheduled.get("message"))):
        return None
    return parse_time(since) if since else None


def stuck_on_volume(pods: Iterable[Object], now: datetime) -> Problem | None:
    """Return the problem of pods that share a volume of one node, where one waits elsewhere."""
    alive = list(pods)
    nodes = {pod["spec"].get("nodeName") for pod in alive if holds(pod, "ContainersReady")}
    for pod in alive:
        node = pod["spec"].get("nodeName")
        elsewhere = node and nodes and node not in nodes
        if elsewhere and _has_been_creating(pod, now) > _MOUNT_SECONDS:
            message = f"Pod {name_of(pod)} is on {node}, the volume on {', '.join(nodes)}"
            return volume_elsewhere(message)
    return None


def volume_elsewhere(what: str) -> Problem:
    """Return the problem of replicas that do not fit on the one node of their volume."""
    return Problem(
        Reason.VOLUME_ON_OTHER_NODE,
        f"{what}. The model's volume is ReadWriteOnce, so all replicas must fit on its node: use"
        " fewer replicas, or a claim with spec.cache.pvc.accessModes [ReadWriteMany].",
    )


def describe_exit(terminated: Mapping[str, Any]) -> str:
    """Describe how a container ended, from its `terminated` state."""
    return f"{terminated.get('reason') or 'Error'}, exit code {terminated.get('exitCode')}"


def _scheduling_problem(pod: Mapping[str, Any]) -> Problem | None:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    detail = str(scheduled.get("message") or "no node takes it")[:_SHOWN]
    text = f"Pod {name_of(pod)} cannot be scheduled: {detail}"
    if any(sign in detail for sign in _ELSEWHERE):
        return volume_elsewhere(text.rstrip("."))
    reason = Reason.UNSCHEDULABLE
    if _NO_GPU.search(detail):
        reason = Reason.INSUFFICIENT_GPUS
    elif any(sign in detail for sign in _UNBOUND):
        reason = Reason.CLAIM_NOT_BOUND
    return Problem(reason, text, passing=True, detail=detail)


def _told(pod: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Return the pod's name, with that of a container which is not Kvasir's."""
    container = status.get("name")
    own = container in (labels.ENGINE_CONTAINER, labels.DOWNLOAD)
    return name_of(pod) if own else f"{name_of(pod)} (container {container})"


def _container_problem(pod: str, status: Mapping[str, Any]) -> Problem | None:
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason") or ""
    detail = str(waiting.get("message") or reason)[:_SHOWN]
    if reason in _PULL:
        text = f"Image {status.get('image') or ''} cannot be pulled by pod {pod}: {detail}"
        return Problem(Reason.IMAGE_PULL_FAILED, text, detail=detail)
    if reason in _CONFIG:
        text = f"Pod {pod} cannot be started: {detail}"
        return Problem(Reason.CONTAINER_CONFIG, text, detail=detail)
    restarts = int(status.get("restartCount") or 0)
    if reason == "CrashLoopBackOff" or (restarts >= 3 and not status.get("ready")):
        ended = (status.get("lastState") or {}).get("terminated") or {}
        last = " ".join(str(ended.get("message") or "").split())[-_SHOWN:]
        how, told = describe_exit(ended), f": {last}" if last else ""
        times = f"{restarts} times" if restarts != 1 else "once"
        text = f"Pod {pod} crashed {times} ({how}){told}"
        return Problem(Reason.CRASHING, text, detail=f"{how}{told}")
    return None


def _has_been_creating(pod: Object, now: datetime) -> float:
    """Return the seconds since the pod got its node while its containers are made; else 0."""
    since = condition(pod, "PodScheduled").get("lastTransitionTime")
    creating = all(
        ((each.get("state") or {}).get("waiting") or {}).get("reason") == "ContainerCreating"
        for each in container_statuses(pod)
    )
    return (now - parse_time(since)).total_seconds() if creating and since else 0.0
