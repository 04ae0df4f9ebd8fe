"""The whole plan: a list of pure steps, and one assembler of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvasir.kube.objects import Object
from kvasir.resource import LLMDeployment
from kvasir.resource.deployment_status import ConditionType, DeploymentPhase, Reason
from kvasir_operator.plan.autoscaling import plan_autoscaling
from kvasir_operator.plan.conditions import Conditions, ConditionValue
from kvasir_operator.plan.engine.gpu_claims import claim_gpus
from kvasir_operator.plan.engine.workload import run_engines
from kvasir_operator.plan.external import watch_upstreams
from kvasir_operator.plan.failure import Failure
from kvasir_operator.plan.gpu_fit import fit_gpus
from kvasir_operator.plan.inherited_values import tell_inherited
from kvasir_operator.plan.lora.lora_step import plan_adapters
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
    adapters: Mapping[str, str] | None = None
    """Directories of the LoRA adapters that engines shall hold, by their names; None = no engine is
    asked for any."""


def plan(deployment: LLMDeployment | str, observed: Observed, settings: OperatorSettings) -> Plan:
    """Plan for a resource, as `parse_resource` gives it, and what is observed.

    No clock, no network: the same for the same arguments.
    """
    if isinstance(deployment, str):
        return _refused(observed, deployment)
    inputs = PlanInputs(deployment, observed, settings)
    accepted = accept(inputs)
    inherited = tell_inherited(inputs, accepted)
    if inputs.spec.external is not None:
        return assemble(inputs, (accepted, watch_upstreams(inputs, accepted)), None, None)
    network = plan_network(inputs)
    monitoring = plan_monitoring(inputs)
    autoscaling = plan_autoscaling(inputs)
    cached = cache_model(inputs, accepted)
    fitted = fit_gpus(inputs, cached.download)
    blocked = accepted.blocked or cached.blocked or fitted.blocked
    engines = run_engines(inputs, fitted.tensor, blocked)
    routed = confirm_routing(inputs, engines.pods)
    claimed = claim_gpus(inputs) if not accepted.blocked else StepResult()
    around = (inherited, claimed, network, monitoring, autoscaling)
    waits = accepted.blocked or cached.blocked
    adapters = plan_adapters(inputs, engines.pods, waits=waits)
    steps = (accepted, *around, cached, fitted, engines, routed, adapters)
    summary = summarise(inputs, steps, engines.pods, blocked)
    made = assemble(inputs, (*steps, summary), engines.scale, note_of(cached.download))
    return made if inputs.spec.paused else replace(made, adapters=adapters.wanted)


def assemble(
    inputs: PlanInputs,
    steps: Sequence[StepResult],
    scale: int | None,
    note: tuple[Object, dict[str, str]] | None,
) -> Plan:
    """Make the plan of all steps' results; of a paused LLMDeployment only the status changes."""
    conditions = (each for step in steps for each in step.conditions)
    status: Object = {
        "observedGeneration": inputs.observed.generation,
        "className": inputs.settings.class_name,
        "conditions": _conditions(inputs.observed, *conditions),
        **{name: value for step in steps for name, value in step.status.items()},
    }
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


def with_failures(status: Object, failures: Sequence[Failure], observed: Observed) -> Object:
    """Return `status` with what failed in carrying out the plan; its other conditions stay."""
    if not failures:
        return status
    reason = failures[0].reason
    message = " ".join(each.message for each in failures)
    passing = all(each.passing for each in failures)
    kind = ConditionType.RECONCILING if passing else ConditionType.STALLED
    failed = _conditions(
        observed,
        ConditionValue(ConditionType.DEGRADED, True, reason, message),
        ConditionValue(kind, True, reason, message),
        ConditionValue(ConditionType.READY, False, reason, message),
    )
    others = [it for it in status.get("conditions") or () if it["type"] not in _OF_KSTATUS]
    by_type = {each["type"]: each for each in (*others, *failed)}
    phase = DeploymentPhase.DEGRADED if status.get("readyReplicas") else DeploymentPhase.FAILED
    return {**status, "conditions": list(by_type.values()), "phase": phase.value}


def _refused(observed: Observed, message: str) -> Plan:
    """Plan for an invalid resource: leave running objects unchanged."""
    conditions = _conditions(
        observed,
        ConditionValue(ConditionType.ACCEPTED, False, Reason.INVALID_SPEC, message),
        ConditionValue(ConditionType.DEGRADED, True, Reason.INVALID_SPEC, message),
        ConditionValue(ConditionType.STALLED, True, Reason.INVALID_SPEC, message),
        ConditionValue(ConditionType.READY, False, Reason.INVALID_SPEC, message),
    )
    kept = {name: observed.status[name] for name in _KEPT if name in observed.status}
    kept |= {"observedGeneration": observed.generation, "phase": DeploymentPhase.FAILED.value}
    return Plan({**kept, "conditions": conditions})


_OF_KSTATUS = (ConditionType.RECONCILING.value, ConditionType.STALLED.value)
_KEPT = (
    "className",
    "inherited",
    "replicas",
    "readyReplicas",
    "updatedReplicas",
    "selector",
    "url",
)


def _conditions(observed: Observed, *values: ConditionValue) -> list[Object]:
    before = observed.status.get("conditions") or ()
    conditions = Conditions(before, observed.generation, observed.now)
    for value in values:
        conditions.set(*value)
    return conditions.as_list()
