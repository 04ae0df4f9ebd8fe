"""What keeps pods from running, read from their statuses; pure checks, one for each cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvasir.resource.deployment_status import Reason
from kvasir_operator.objects import Object, condition, container_status, holds, name_of, parse_time

_NO_GPU = "Insufficient nvidia.com/gpu"
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
    """Why a pod does not run."""

    reason: Reason
    message: str
    passing: bool = False
    """It may pass without a change of the resource: capacity may come."""


def pod_problem(pod: Object, container: str) -> Problem | None:
    """The first thing that is wrong with `pod`; None when it runs, or has only just begun."""
    return _scheduling(pod) or _container(pod, container)


def worst(problems: Iterable[Problem | None]) -> Problem | None:
    """What is most worth telling: what will not pass before what may."""
    return min(filter(None, problems), key=lambda each: each.passing, default=None)


def lacks_gpu_since(pod: Object) -> datetime | None:
    """Since when a pod has had no node for want of GPUs, whatever else stands in its way: on the
    only node with its volume it is the GPUs that are missing. None if they are not."""
    scheduled = condition(pod, "PodScheduled")
    since = scheduled.get("lastTransitionTime")
    if scheduled.get("status") != "False" or _NO_GPU not in str(scheduled.get("message")):
        return None
    return parse_time(since) if since else None


def stuck_on_volume(pods: Iterable[Object], now: datetime) -> Problem | None:
    """Of pods that share a volume of one node: some are elsewhere and wait for it in vain."""
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
    """A volume that one node can mount, and replicas that do not fit there."""
    return Problem(
        Reason.VOLUME_ON_OTHER_NODE,
        f"{what}. The model's volume is ReadWriteOnce, so all replicas must fit on its node: use"
        " fewer replicas, or a claim with spec.cache.pvc.accessModes [ReadWriteMany].",
    )


def _scheduling(pod: Object) -> Problem | None:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    message = str(scheduled.get("message") or "no node takes it")[:_SHOWN]
    text = f"Pod {name_of(pod)} cannot be scheduled: {message}"
    if any(sign in message for sign in _ELSEWHERE):
        return volume_elsewhere(text.rstrip("."))
    if _NO_GPU in message:
        return Problem(Reason.INSUFFICIENT_GPUS, text, passing=True)
    if any(sign in message for sign in _UNBOUND):
        return Problem(Reason.CLAIM_NOT_BOUND, text, passing=True)
    return Problem(Reason.UNSCHEDULABLE, text, passing=True)


def _container(pod: Object, container: str) -> Problem | None:
    status = container_status(pod, container)
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason") or ""
    detail = str(waiting.get("message") or reason)[:_SHOWN]
    if reason in _PULL:
        image = str(status.get("image") or "")
        text = f"Image {image} cannot be pulled by pod {name_of(pod)}: {detail}"
        return Problem(Reason.IMAGE_PULL_FAILED, text)
    if reason in _CONFIG:
        return Problem(Reason.CONTAINER_CONFIG, f"Pod {name_of(pod)} cannot be started: {detail}")
    restarts = int(status.get("restartCount") or 0)
    if reason == "CrashLoopBackOff" or (restarts >= 3 and not status.get("ready")):
        return Problem(Reason.CRASHING, _crash(pod, status, restarts))
    return None


def _crash(pod: Object, status: Mapping[str, Any], restarts: int) -> str:
    ended = (status.get("lastState") or {}).get("terminated") or {}
    how = ended.get("reason") or "Error"
    code = ended.get("exitCode")
    last = " ".join(str(ended.get("message") or "").split())[-_SHOWN:]
    told = f": {last}" if last else ""
    times = f"{restarts} times" if restarts != 1 else "once"
    return f"Pod {name_of(pod)} crashed {times} ({how}, exit code {code}){told}"


def _has_been_creating(pod: Object, now: datetime) -> float:
    """Seconds since the pod got its node, while its containers are still being made; else 0."""
    since = condition(pod, "PodScheduled").get("lastTransitionTime")
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    creating = all(
        ((each.get("state") or {}).get("waiting") or {}).get("reason") == "ContainerCreating"
        for each in statuses
    )
    return (now - parse_time(since)).total_seconds() if creating and since else 0.0
