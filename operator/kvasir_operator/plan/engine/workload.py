"""Step 4: the Deployment, and how many of its engines are up."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.resource import labels
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.objects import Object, condition, holds, is_terminating, label
from kvasir_operator.plan.draft import Draft
from kvasir_operator.plan.engine.pod_template import REVISION, pod_template
from kvasir_operator.plan.engine.rollout import Strategy, deployment_manifest, strategy_of
from kvasir_operator.plan.gpu_fit import FITTED, fitted_for
from kvasir_operator.plan.model_download.storage import is_tied_to_a_node
from kvasir_operator.plan.pod_problems import (
    Problem,
    pod_problem,
    stuck_on_volume,
    volume_elsewhere,
    worst,
)
from kvasir_operator.spec_facts import Storage


@dataclass(frozen=True, slots=True)
class Workload:
    """The engine pods by what they are for the revision that is wanted."""

    wanted: int
    current: tuple[Object, ...]
    """Non-terminating pods of the wanted revision."""
    old: tuple[Object, ...]
    """Of other revisions, and staying."""
    problem: Problem | None
    strategy: Strategy

    @property
    def up(self) -> list[Object]:
        """Current ones whose engine is ready."""
        return [pod for pod in self.current if holds(pod, "ContainersReady")]

    @property
    def serving(self) -> list[Object]:
        """Those of any revision that get requests."""
        return [pod for pod in (*self.current, *self.old) if holds(pod, "Ready")]


def run_engines(draft: Draft, storage: Storage) -> Workload:
    """Adds the Deployment and sets WorkloadReady. While something is in the way, a Deployment
    that exists stays as it is, but for its replicas."""
    template = pod_template(draft, storage)
    revision = template["metadata"]["labels"][REVISION]
    strategy = strategy_of(draft, revision)
    if not draft.blocked:
        manifest = deployment_manifest(draft, template, strategy)
        manifest["metadata"]["annotations"] = {FITTED: fitted_for(draft, storage)}
        draft.manifests.append(manifest)
    elif draft.observed.deployment is not None:
        draft.scale = draft.deployment.spec.replicas
    workload = _workload(draft, revision, strategy)
    _set_condition(draft, workload)
    _count(draft)
    return workload


def _workload(draft: Draft, revision: str, strategy: Strategy) -> Workload:
    staying = [
        pod for pod in draft.observed.pods if not is_terminating(pod) and not _has_ended(pod)
    ]
    current = tuple(pod for pod in staying if label(pod, REVISION) == revision)
    old = tuple(pod for pod in staying if label(pod, REVISION) != revision)
    return Workload(
        draft.deployment.spec.replicas,
        current,
        old,
        _problem(draft, current or old),
        strategy,
    )


def _problem(draft: Draft, pods: tuple[Object, ...]) -> Problem | None:
    found = worst(pod_problem(pod, labels.ENGINE_CONTAINER) for pod in pods)
    if is_tied_to_a_node(draft.observed.claim):
        stuck = stuck_on_volume(pods, draft.observed.now)
        if found is None and stuck is not None:
            return stuck
        serving = any(holds(pod, "ContainersReady") for pod in pods)
        if found is not None and found.passing and serving and len(pods) > 1:
            return volume_elsewhere(found.message.rstrip("."))
    return found or _refused(draft.observed.deployment)


def _refused(deployment: Object | None) -> Problem | None:
    """Why the API server would not have more pods."""
    failure = condition(deployment, "ReplicaFailure") if deployment is not None else {}
    if failure.get("status") != "True":
        return None
    message = str(failure.get("message") or "")
    reason = Reason.QUOTA_EXCEEDED if "exceeded quota" in message else Reason.PODS_REFUSED
    return Problem(reason, f"Pods cannot be made: {message}")


def _set_condition(draft: Draft, workload: Workload) -> None:
    status, reason, message = _verdict(draft, workload)
    draft.conditions.set(ConditionType.WORKLOAD_READY, status, reason, message)


def _verdict(draft: Draft, workload: Workload) -> tuple[bool, Reason, str]:
    up, wanted = len(workload.up), workload.wanted
    told = f"{up} of {wanted} engines of the newest revision are up"
    if wanted == 0 and not workload.current and not workload.old:
        return True, Reason.SCALED_TO_ZERO, "spec.replicas is 0."
    if workload.problem is not None and (up < wanted or workload.old):
        message = f"{told}. {workload.problem.message}{_about_gpus(draft, workload.problem)}"
        return False, workload.problem.reason, message
    if draft.blocked and draft.observed.deployment is None:
        return False, Reason.WAITING, "No engine is started yet; see the other conditions."
    if workload.strategy.gave_up_surge:
        message = f"{told}. There is no GPU for a surge pod: one goes before one comes."
        return False, Reason.SURGE_UNSCHEDULABLE, message
    if workload.old or up > wanted:
        message = f"{told}; {len(workload.old)} of older revisions are still there."
        return False, Reason.ROLLING_OUT, message
    if up < wanted:
        return False, Reason.STARTING, f"{told}."
    return True, Reason.AVAILABLE, f"{told}."


def _about_gpus(draft: Draft, problem: Problem) -> str:
    """What the scheduler does not say: what is asked for, and the most there is."""
    most = draft.observed.hardware.gpus_per_node
    if problem.reason is not Reason.INSUFFICIENT_GPUS or most is None or most >= draft.tensor:
        return ""
    asked = f" A replica asks for {draft.tensor} GPUs; of the nodes that it may run on"
    if most == 0:
        return f"{asked} none offers nvidia.com/gpu (is the device plugin installed?)."
    return f"{asked} the largest has {most}."


def _count(draft: Draft) -> None:
    """The numbers that autoscalers and people read: as the Deployment's controller sees them."""
    live = (draft.observed.deployment or {}).get("status") or {}
    draft.status["replicas"] = int(live.get("replicas") or 0)
    draft.status["readyReplicas"] = int(live.get("readyReplicas") or 0)
    draft.status["updatedReplicas"] = int(live.get("updatedReplicas") or 0)
    identity = labels.identity(draft.name, labels.ENGINE)
    draft.status["selector"] = ",".join(f"{key}={value}" for key, value in sorted(identity.items()))


def _has_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
