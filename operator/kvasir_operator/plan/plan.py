"""The whole plan: a list of pure steps, and one assembler of their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvasir.resource import LLMDeployment
from kvasir.resource.deployment_status import ConditionType, DeploymentPhase, Reason
from kvasir_operator.objects import Object
from kvasir_operator.plan.autoscaling import plan_autoscaling
from kvasir_operator.plan.conditions import Conditions, ConditionValue
from kvasir_operator.plan.engine.workload import run_engines
from kvasir_operator.plan.gpu_fit import fit_gpus
from kvasir_operator.plan.model_download.cache_step import cache_model
from kvasir_operator.plan.model_download.job_state import note_of
from kvasir_operator.plan.monitoring import plan_monitoring
from kvasir_operator.plan.network import plan_network
from kvasir_operator.plan.observed import Observed
from kvasir_operator.plan.router_confirmation import confirm_routing
from kvasir_operator.plan.step import PlanInputs, StepResult
from kvasir_operator.plan.summary import summarise
from kvasir_operator.plan.validation import accept
from kvasir_operator.settings import OperatorSettings


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that shall be done about one LLMDeployment now."""

    status: Object
    """The whole status."""
    manifests: tuple[Object, ...] = ()
    """Objects that shall exist, in the order in which they are made."""
    deletions: tuple[Object, ...] = ()
    """Objects to delete."""
    scale: int | None = None
    """Replicas of a Deployment that otherwise stays as it is."""
    note: tuple[Object, dict[str, str]] | None = None
    """An object and annotations that it shall have beside those it has."""
    requeue: float | None = None
    """Seconds after which to plan again though nothing may have happened."""


def plan(deployment: LLMDeployment | str, observed: Observed, settings: OperatorSettings) -> Plan:
    """Plan for a resource, as `parse_resource` gives it, and what is observed.

    No clock, no network: the same for the same arguments.
    """
    if isinstance(deployment, str):
        return _refused(observed, deployment)
    inputs = PlanInputs(deployment, observed, settings)
    accepted = accept(inputs)
    network = plan_network(inputs)
    monitoring = plan_monitoring(inputs)
    autoscaling = plan_autoscaling(inputs)
    cached = cache_model(inputs, accepted)
    fitted = fit_gpus(inputs, cached.download)
    blocked = accepted.blocked or cached.blocked or fitted.blocked
    engines = run_engines(inputs, fitted.tensor, blocked)
    routed = confirm_routing(inputs, engines.pods)
    steps = (accepted, network, monitoring, autoscaling, cached, fitted, engines, routed)
    summary = summarise(inputs, steps, engines.pods, blocked)
    return assemble(inputs, (*steps, summary), engines.scale, note_of(cached.download))


def assemble(
    inputs: PlanInputs,
    steps: Sequence[StepResult],
    scale: int | None,
    note: tuple[Object, dict[str, str]] | None,
) -> Plan:
    """Make the plan of all steps' results; of a paused LLMDeployment only the status changes."""
    values = [each for step in steps for each in step.conditions]
    fields = {name: value for step in steps for name, value in step.status.items()}
    status = _status(inputs.observed, values, fields)
    if inputs.spec.paused:
        return Plan(status)
    return Plan(
        status,
        tuple(each for step in steps for each in step.manifests),
        tuple(each for step in steps for each in step.deletions),
        scale,
        note,
        min((step.requeue for step in steps if step.requeue is not None), default=None),
    )


def with_failures(status: Object, failures: Sequence[str], observed: Observed) -> Object:
    """Return `status` with the messages of an API server that refused some of the manifests."""
    if not failures:
        return status
    conditions = _conditions(observed)
    for each in status["conditions"]:
        conditions.keep(each)
    message = " ".join(failures)
    conditions.set(ConditionType.DEGRADED, True, Reason.APPLY_FAILED, message)
    conditions.set(ConditionType.READY, False, Reason.APPLY_FAILED, message)
    phase = DeploymentPhase.DEGRADED if status.get("readyReplicas") else DeploymentPhase.FAILED
    return {**status, "conditions": conditions.as_list(), "phase": phase.value}


def _refused(observed: Observed, message: str) -> Plan:
    """Plan for an invalid resource: leave running objects unchanged."""
    invalid = Reason.INVALID_SPEC
    values = [
        ConditionValue(ConditionType.ACCEPTED, False, invalid, message),
        ConditionValue(ConditionType.DEGRADED, True, invalid, message),
        ConditionValue(ConditionType.READY, False, invalid, message),
    ]
    before = observed.resource.get("status") or {}
    kept = {name: before[name] for name in _COUNTS if name in before}
    return Plan(_status(observed, values, {**kept, "phase": DeploymentPhase.FAILED.value}))


_COUNTS = ("replicas", "readyReplicas", "updatedReplicas", "selector", "url")


def _conditions(observed: Observed) -> Conditions:
    before: dict[str, Any] = observed.resource.get("status") or {}
    return Conditions(before.get("conditions") or (), observed.generation, observed.now)


def _status(
    observed: Observed, values: Iterable[ConditionValue], fields: Mapping[str, object]
) -> Object:
    conditions = _conditions(observed)
    for value in values:
        conditions.set(*value)
    return {
        "observedGeneration": observed.generation,
        "conditions": conditions.as_list(),
        **fields,
    }
