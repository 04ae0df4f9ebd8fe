"""Step 4: the Deployment, and the state of its engines."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.kube.objects import Object, condition, holds, is_terminating, label
from kvasir.kube.pod_problems import (
    Problem,
    pod_problem,
    stuck_on_volume,
    volume_elsewhere,
    worst,
)
from kvasir.resource import labels
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.plan.canary.canary_workload import run_canary
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.engine.engine_pods import EnginePods
from kvasir_operator.plan.engine.pod_template import REVISION, pod_template
from kvasir_operator.plan.engine.replacement import leaving, tell_leaving
from kvasir_operator.plan.engine.rollout import (
    Strategy,
    deployment_manifest,
    progress_deadline,
    replacement_of,
    strategy_of,
)
from kvasir_operator.plan.model_download.storage import is_tied_to_a_node
from kvasir_operator.plan.observed import Observed
from kvasir_operator.plan.step import PlanInputs, StepResult
from kvasir_operator.spec_facts import device_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(StepResult):
    """Contribution of the engines."""

    pods: EnginePods
    scale: int | None
    """Replicas of the Deployment where nothing else of it may be changed."""


def run_engines(inputs: PlanInputs, tensor: int, blocked: bool) -> Workload:
    """Want the Deployment and set WorkloadReady. While engines are `blocked`, a Deployment that
    exists stays as it is, but for its replicas."""
    template = pod_template(inputs, tensor)
    revision = template["metadata"]["labels"][REVISION]
    strategy = strategy_of(inputs, revision)
    pods = _engine_pods(inputs.observed, revision)
    replacement = replacement_of(inputs, pods, strategy)
    manifest = deployment_manifest(inputs, template, strategy, replacement)
    canary = run_canary(inputs, template, progress_deadline(inputs.spec), blocked)
    stays = blocked or canary.stable_stays
    if canary.stable_stays:
        pods = _stable_pods(pods)
    verdict = canary.workload or _verdict(inputs, pods, strategy, tensor, blocked)
    live = inputs.observed.deployment
    every = (strategy.requeue, canary.requeue, replacement.requeue)
    waits = [it for it in every if it is not None]
    return Workload(
        manifests=(*canary.manifests, *(() if stays else (manifest,))),
        deletions=canary.deletions,
        conditions=(
            *canary.conditions,
            ConditionValue(ConditionType.WORKLOAD_READY, *verdict),
            *tell_leaving((*pods.current, *pods.old)).conditions,
        ),
        status={**_counts(inputs), **_gpus(inputs, tensor), **canary.status},
        requeue=min(waits, default=None),
        pods=pods,
        scale=inputs.spec.replicas if stays and live is not None else None,
    )


def _engine_pods(observed: Observed, revision: str) -> EnginePods:
    staying = [pod for pod in observed.pods if not is_terminating(pod) and not _has_ended(pod)]
    return EnginePods(
        tuple(pod for pod in staying if label(pod, REVISION) == revision),
        tuple(pod for pod in staying if label(pod, REVISION) != revision),
    )


def _stable_pods(pods: EnginePods) -> EnginePods:
    """Return the pods of the stable Deployment as the current ones: its revision is to stay."""
    every = (*pods.current, *pods.old)
    return EnginePods(tuple(pod for pod in every if not label(pod, labels.TRACK)), ())


def _problem(inputs: PlanInputs, pods: tuple[Object, ...]) -> Problem | None:
    observed = inputs.observed
    template = inputs.spec.template
    # What an admission webhook adds is its own affair
    ours = (labels.ENGINE_CONTAINER, *(template.container_names if template else ()))
    found = worst(pod_problem(pod, ours) for pod in pods)
    if is_tied_to_a_node(observed.claim):
        stuck = stuck_on_volume(pods, observed.now)
        if found is None and stuck is not None:
            return stuck
        serving = any(holds(pod, "ContainersReady") for pod in pods)
        if found is not None and found.passing and serving and len(pods) > 1:
            return volume_elsewhere(found.message.rstrip("."))
    return found or _refused(observed.deployment)


def _refused(deployment: Object | None) -> Problem | None:
    """Return the problem of an API server that refuses to make more pods."""
    failure = condition(deployment, "ReplicaFailure") if deployment is not None else {}
    if failure.get("status") != "True":
        return None
    message = str(failure.get("message") or "")
    reason = Reason.QUOTA_EXCEEDED if "exceeded quota" in message else Reason.PODS_REFUSED
    return Problem(reason, f"Pods cannot be made: {message}")


def _verdict(
    inputs: PlanInputs, pods: EnginePods, strategy: Strategy, tensor: int, blocked: bool
) -> tuple[bool, Reason, str]:
    up, wanted = len(pods.up), inputs.spec.replicas
    told = f"{up} of {wanted} engines of the newest revision are up"
    if wanted == 0 and not pods.current and not pods.old:
        return True, Reason.SCALED_TO_ZERO, "spec.replicas is 0."
    late = _past_deadline(inputs)
    problem = _problem(inputs, pods.current or pods.old)
    if problem is not None and (up < wanted or pods.old):
        message = f"{told}. {problem.message}{_about_gpus(inputs, problem, tensor)}"
        return False, problem.reason, message
    if blocked and inputs.observed.deployment is None:
        return False, Reason.WAITING, "No engine is started yet; see the other conditions."
    if strategy.gave_up_surge:
        message = f"{told}. There is no GPU for a surge pod: one goes before one comes."
        return False, Reason.SURGE_UNSCHEDULABLE, message
    if late is not None and pods.old:
        return False, Reason.PROGRESS_DEADLINE, f"{told}. {late}"
    replaced = bool(leaving(pods.current))  # by one more, until it serves
    if pods.old or (up > wanted and not replaced):
        message = f"{told}; {len(pods.old)} of older revisions are still there."
        return False, Reason.ROLLING_OUT, message
    if up >= wanted:
        return True, Reason.AVAILABLE, f"{told}."
    if late is not None:
        return False, Reason.PROGRESS_DEADLINE, f"{told}. {late}"
    return False, Reason.STARTING, f"{told}."


def _past_deadline(inputs: PlanInputs) -> str | None:
    """Return a sentence if the Deployment's controller has given up waiting for the rollout."""
    live = inputs.observed.deployment
    progressing = condition(live, "Progressing") if live is not None else {}
    if progressing.get("reason") != "ProgressDeadlineExceeded":
        return None
    seconds = progress_deadline(inputs.spec)
    return (
        f"None has come up for {seconds} s (lifecycle.startupSeconds and 600 s for the pod's place"
        " and image); see the log of the newest pod, or allow more startupSeconds."
    )


def _about_gpus(inputs: PlanInputs, problem: Problem, tensor: int) -> str:
    """Say what the scheduler does not: the GPUs that are asked for, and the most there are."""
    largest = inputs.observed.hardware.gpus_per_node
    if problem.reason is not Reason.INSUFFICIENT_GPUS or largest is None or largest >= tensor:
        return ""
    asked = f" A replica asks for {tensor} GPUs; of the nodes that it may run on"
    if largest == 0:
        kind = inputs.spec.resources.gpu_words
        return f"{asked} none offers {kind} (is the device plugin installed?)."
    return f"{asked} the largest has {largest}."


def _gpus(inputs: PlanInputs, tensor: int) -> Object:
    """Return the number and kind of one replica's GPUs, for people."""
    resources = inputs.spec.resources
    count = tensor if device_of(inputs.spec) == "cuda" else resources.gpus
    return {"gpus": f"{count} {resources.gpu_words}"} if count else {}


def _counts(inputs: PlanInputs) -> Object:
    """Return the numbers that autoscalers and people read, as the Deployment's controller does."""
    live = (inputs.observed.deployment or {}).get("status") or {}
    identity = labels.identity(inputs.name, labels.ENGINE)
    return {
        **{name: int(live.get(name) or 0) for name in _COUNTED},
        "selector": ",".join(f"{key}={value}" for key, value in sorted(identity.items())),
    }


_COUNTED = ("replicas", "readyReplicas", "updatedReplicas")


def _has_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
