"""The whole plan: a list of small steps over one draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvasir.resource import LLMDeployment
from kvasir.resource.deployment_status import ConditionType, DeploymentPhase, Reason
from kvasir_operator.objects import Object
from kvasir_operator.plan.autoscaling import add_autoscaling
from kvasir_operator.plan.conditions import Conditions
from kvasir_operator.plan.draft import Draft
from kvasir_operator.plan.engine.workload import run_engines
from kvasir_operator.plan.gpu_fit import fit
from kvasir_operator.plan.model_download.cache_step import cache_model
from kvasir_operator.plan.model_download.job_state import note_of
from kvasir_operator.plan.monitoring import add_monitoring
from kvasir_operator.plan.network import add_surroundings
from kvasir_operator.plan.observed import Observed
from kvasir_operator.plan.router_confirmation import route
from kvasir_operator.plan.summary import summarise
from kvasir_operator.plan.validation import accept
from kvasir_operator.settings import OperatorSettings
from kvasir_operator.spec_facts import storage_of


@dataclass(frozen=True, slots=True)
class Plan:
    """What shall be done about one LLMDeployment now."""

    status: Object
    """The whole status."""
    manifests: tuple[Object, ...] = ()
    """What shall exist, in the order in which it is made."""
    deletions: tuple[Object, ...] = ()
    """Objects to delete."""
    scale: int | None = None
    """Replicas of a Deployment that otherwise stays as it is."""
    note: tuple[Object, dict[str, str]] | None = None
    """An object and annotations that it shall have beside those it has."""
    requeue: float | None = None
    """Seconds after which to plan again though nothing may have happened."""


def plan(deployment: LLMDeployment | str, observed: Observed, settings: OperatorSettings) -> Plan:
    """The plan for a resource, as `parse_resource` gives it, and what is observed.

    No clock, no network: the same for the same arguments.
    """
    if isinstance(deployment, str):
        return _refused(observed, deployment)
    draft = Draft(observed, settings, deployment, _conditions(observed))
    storage = storage_of(deployment.spec, draft.name)
    accept(draft)
    add_surroundings(draft)
    add_monitoring(draft)
    add_autoscaling(draft)
    download = cache_model(draft, storage)
    fit(draft, storage, download)
    workload = run_engines(draft, storage)
    route(draft, workload)
    summarise(draft, workload)
    status = _status(observed, draft.conditions, draft.status)
    if deployment.spec.paused:
        return Plan(status)
    return Plan(
        status,
        tuple(draft.manifests),
        tuple(draft.deletions),
        draft.scale,
        note_of(download),
        draft.requeue,
    )


def with_failures(status: Object, failures: Sequence[str], observed: Observed) -> Object:
    """`status`, with the word of an API server that refused some of the manifests."""
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
    conditions = _conditions(observed)
    conditions.set(ConditionType.ACCEPTED, False, Reason.INVALID_SPEC, message)
    conditions.set(ConditionType.DEGRADED, True, Reason.INVALID_SPEC, message)
    conditions.set(ConditionType.READY, False, Reason.INVALID_SPEC, message)
    before = observed.resource.get("status") or {}
    kept = {name: before[name] for name in _COUNTS if name in before}
    return Plan(_status(observed, conditions, {**kept, "phase": DeploymentPhase.FAILED.value}))


_COUNTS = ("replicas", "readyReplicas", "updatedReplicas", "selector", "url")


def _conditions(observed: Observed) -> Conditions:
    before: dict[str, Any] = observed.resource.get("status") or {}
    generation = int(observed.resource["metadata"].get("generation") or 0)
    return Conditions(before.get("conditions") or (), generation, observed.now)


def _status(observed: Observed, conditions: Conditions, rest: Object) -> Object:
    return {
        "observedGeneration": int(observed.resource["metadata"].get("generation") or 0),
        "conditions": conditions.as_list(),
        **rest,
    }
