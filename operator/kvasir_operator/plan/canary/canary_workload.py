"""The canary's Deployment, its state, and whether the stable Deployment has to stay as it is."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from pydantic import ValidationError

from kvasir.kube.objects import (
    Object,
    annotation,
    condition,
    holds,
    is_terminating,
    label,
    name_of,
    parse_time,
)
from kvasir.kube.pod_problems import pod_problem
from kvasir.resource import labels
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir.resource.rollout.rollout_status import (
    COMMAND,
    PAUSED,
    RolloutCommand,
    RolloutPhase,
    RolloutStatus,
)
from kvasir_operator.objects import short_hash
from kvasir_operator.plan.canary.canary_progress import RUNNING, CanaryFacts, advance, finish
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.step import PlanInputs, StepResult

START_PATIENCE = 45.0
"""Seconds from a pod's creation in which a failed start is not held against the canary: a registry
or a node may have hiccups."""
LOOK_SECONDS = 5.0
"""Between two looks at a canary that gets requests."""
_HISTORY = 0
_NAMED = 40

Told = tuple[bool, Reason, str]
"""A condition's status, reason and message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryPlan(StepResult):
    """Contribution of the canary."""

    stable_stays: bool = False
    """The stable Deployment is not to be changed, but for its replicas."""
    workload: Told | None = None
    """The condition WorkloadReady, where the canary decides on it."""


def canary_name(name: str) -> str:
    """Return the name of the canary's Deployment, which no other LLMDeployment's can be: one may be
    called NAME-canary."""
    return f"{name[:_NAMED].rstrip('-')}-canary-{short_hash(name)}"


def rollout_of(status: Object) -> RolloutStatus | None:
    """Return the state that an LLMDeployment's status tells; None if it tells of none that this
    version understands."""
    try:
        return RolloutStatus.model_validate(status["rollout"])
    except (KeyError, ValidationError):
        return None


def run_canary(inputs: PlanInputs, template: Object, deadline: int, blocked: bool) -> CanaryPlan:
    """Go on with the canary of the revision that `template` is, if one is wanted; `deadline`:
    seconds that its pods may take to start. While engines are `blocked`, all stays as it is."""
    before = rollout_of(inputs.observed.status)
    live = inputs.observed.deployment
    wanted = inputs.spec.rollout.canary
    revision = label(template, labels.REVISION)
    stable = label(live["spec"]["template"], labels.REVISION) if live is not None else ""
    if blocked or inputs.spec.paused:
        return _unchanged(before)
    if wanted is None or not stable:
        return CanaryPlan(deletions=_deletions(inputs))
    facts = _facts(inputs, revision, stable)
    if stable == revision:
        state = finish(before, facts)
    elif not _is_at_risk(inputs, before, revision):
        state = None
    else:
        state = advance(wanted, before, facts)
    if state is None:
        return CanaryPlan(deletions=_deletions(inputs))
    runs = state.phase in (*RUNNING, RolloutPhase.PROMOTING)
    return CanaryPlan(
        manifests=(_deployment(inputs, template, state.replicas, deadline),) if runs else (),
        deletions=() if runs else _deletions(inputs),
        conditions=_conditions(state),
        status=_status(state),
        stable_stays=state.phase in (*RUNNING, RolloutPhase.ROLLED_BACK),
        workload=_workload(state),
        requeue=LOOK_SECONDS if state.phase in RUNNING else None,
    )


def _is_at_risk(inputs: PlanInputs, before: RolloutStatus | None, revision: str) -> bool:
    """Tell if a new revision could harm anything: where nothing serves, it replaces what there is
    at once. A canary that has begun is asked no more."""
    if before is not None and before.canary_revision == revision:
        return True
    return any(holds(pod, "Ready") and not label(pod, labels.TRACK) for pod in inputs.observed.pods)


def _unchanged(before: RolloutStatus | None) -> CanaryPlan:
    if before is None:
        return CanaryPlan()
    stays = before.phase in (*RUNNING, RolloutPhase.ROLLED_BACK)
    return CanaryPlan(conditions=_conditions(before), status=_status(before), stable_stays=stays)


def _status(state: RolloutStatus) -> Object:
    return {"rollout": state.model_dump(mode="json", by_alias=True, exclude_none=True)}


# What is observed


def _facts(inputs: PlanInputs, revision: str, stable: str) -> CanaryFacts:
    observed = inputs.observed
    pods = [
        pod
        for pod in observed.pods
        if label(pod, labels.TRACK) == labels.CANARY
        and label(pod, labels.REVISION) == revision
        and not is_terminating(pod)
    ]
    return CanaryFacts(
        now=observed.now,
        revision=revision,
        stable=stable,
        replicas=inputs.spec.replicas,
        ready=sum(holds(pod, "Ready") for pod in pods),
        problem=_problem(inputs, pods),
        rolled_out=_is_rolled_out(observed.deployment, inputs.spec.replicas),
        samples=observed.canary_samples,
        command=_command(observed.resource),
        paused=inputs.spec.rollout.paused or annotation(observed.resource, PAUSED) == "true",
    )


def _problem(inputs: PlanInputs, pods: list[Object]) -> str:
    """Return a sentence on why the canary's pods do not start; "" while they may."""
    template = inputs.spec.template
    ours = (labels.ENGINE_CONTAINER, *(template.container_names if template else ()))
    for pod in pods:
        found = pod_problem(pod, ours)
        if found is not None and not found.passing and _age(inputs, pod) >= START_PATIENCE:
            return found.message
    live = inputs.observed.canary_deployment
    progressing = condition(live, "Progressing") if live is not None else {}
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        problems = filter(None, (pod_problem(pod, ours) for pod in pods))
        why = next((each.message for each in problems), "See the log of its newest pod.")
        return (
            "No pod of the canary has become Ready in its time (lifecycle.startupSeconds and 600 s"
            f" for the pod's place and image). {why}"
        )
    return ""


def _age(inputs: PlanInputs, pod: Object) -> float:
    created = parse_time(pod["metadata"]["creationTimestamp"])
    return (inputs.observed.now - created).total_seconds()


def _is_rolled_out(live: Object | None, replicas: int) -> bool:
    """Tell if the Deployment's controller has seen its newest template, and every replica has it
    and serves."""
    if live is None:
        return False
    status = live.get("status") or {}
    seen = int(status.get("observedGeneration") or 0)
    counts = ("replicas", "updatedReplicas", "availableReplicas")
    return seen >= int(live["metadata"].get("generation") or 0) and all(
        int(status.get(name) or 0) == replicas for name in counts
    )


def _command(resource: Object) -> tuple[RolloutCommand, str] | None:
    """Return the verb of the annotation, and the id that it is about; None for what is neither."""
    verb, _, about = annotation(resource, COMMAND).strip().partition(" ")
    try:
        return RolloutCommand(verb), about.strip()
    except ValueError:
        return None


# What shall be


def _deployment(inputs: PlanInputs, template: Object, replicas: int, deadline: int) -> Object:
    """Return the Deployment of the canary. Its pods have the stable ones' labels and one more, so
    the stable Deployment's selector takes them in; a Deployment leaves alone what another one
    owns."""
    track = {labels.TRACK: labels.CANARY}
    marked = copy.deepcopy(template)
    marked["metadata"]["labels"] |= track
    identity = labels.identity(inputs.name, labels.ENGINE)
    manifest = inputs.child(
        "apps/v1",
        "Deployment",
        canary_name(inputs.name),
        spec={
            "replicas": replicas,
            "revisionHistoryLimit": _HISTORY,
            "progressDeadlineSeconds": deadline,
            "selector": {"matchLabels": identity | track},
            # Pods of a canary that is given up only keep GPUs from the next one
            "strategy": {"type": "Recreate"},
            "template": marked,
        },
    )
    manifest["metadata"]["labels"] |= track
    return manifest


def _deletions(inputs: PlanInputs) -> tuple[Object, ...]:
    live = inputs.observed.canary_deployment
    if live is None or is_terminating(live):
        return ()
    return (inputs.child("apps/v1", "Deployment", name_of(live)),)


def _conditions(state: RolloutStatus) -> tuple[ConditionValue, ...]:
    reason = Reason(state.reason) if state.reason in set(Reason) else Reason.CANARY_STARTING
    known: bool | None = None
    if state.phase == RolloutPhase.ROLLED_BACK:
        known = False
    elif reason is Reason.NO_DIFFERENCE or state.phase == RolloutPhase.PROMOTED:
        known = True
    return (ConditionValue(ConditionType.CANARY_HEALTHY, known, reason, state.message),)


def _workload(state: RolloutStatus) -> Told | None:
    if state.phase == RolloutPhase.ROLLED_BACK:
        message = (
            f"Revision {state.canary_revision} was rolled back at step {state.step} of"
            f" {state.steps}: {state.message} Revision {state.stable_revision} serves; change the"
            f" spec, or try again with the annotation {COMMAND}: retry {state.id}."
        )
        return False, Reason.CANARY_ROLLED_BACK, message
    if state.phase not in RUNNING:
        return None
    message = (
        f"Step {state.step} of {state.steps}: revision {state.canary_revision} gets {state.weight}"
        f" % of the requests. {state.message}"
    )
    return False, _REASONS[RolloutPhase(state.phase)], message


_REASONS = {
    RolloutPhase.STARTING: Reason.CANARY_STARTING,
    RolloutPhase.ANALYSING: Reason.CANARY_ANALYSING,
    RolloutPhase.PAUSED: Reason.CANARY_PAUSED,
}
