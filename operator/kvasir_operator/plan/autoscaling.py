"""Autoscaler of a deployment: the operator's own, a HorizontalPodAutoscaler or KEDA's."""

from __future__ import annotations

from urllib.parse import quote

from kvasir.kube.objects import Object, condition
from kvasir.resource.autoscaling_spec import Autoscaling
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.kinds import AUTOSCALERS, LLMDEPLOYMENTS, SCALED_OBJECTS
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.step import PlanInputs, StepResult
from kvasir_operator.scaling.schedules import bounds_at

_AGGREGATIONS = {"concurrency": "sum", "queue": "sum", "in_flight_tokens": "max"}
"""Aggregation of the routers' numbers. Each router knows the requests that came to it, so they add
up, but each knows all prompts that engines still have to compute. Most of a queue is in routers."""


def plan_autoscaling(inputs: PlanInputs) -> StepResult:
    """Want the autoscaler that `controller` names, if it is none of ours, and every other one
    deleted; set ScalingActive.

    Deleting one changes no replicas: they are in the LLMDeployment's own spec.
    """
    wanted = inputs.spec.autoscaling
    has_keda = SCALED_OBJECTS.plural in inputs.observed.optional
    has_own = AUTOSCALERS.plural in inputs.settings.optional_kinds
    scaled_object = inputs.child(SCALED_OBJECTS.api_version, "ScaledObject", inputs.name)
    autoscaler = inputs.child(AUTOSCALERS.api_version, "HorizontalPodAutoscaler", inputs.name)
    possible = (*((scaled_object,) if has_keda else ()), *((autoscaler,) if has_own else ()))
    if wanted is None:
        return StepResult(deletions=possible)
    made: Object = {}
    if wanted.controller == "keda":
        made = scaled_object
        made["spec"] = _scaled_object(inputs, wanted)
    elif wanted.controller == "hpa":
        made = autoscaler
        made["spec"] = _autoscaler(inputs, wanted)
    active, reason, message = _VERDICTS[wanted.controller](inputs)
    return StepResult(
        manifests=tuple(each for each in possible if each is made),
        deletions=tuple(each for each in possible if each is not made),
        conditions=(ConditionValue(ConditionType.SCALING_ACTIVE, active, reason, message),),
        status=_scheduled(inputs, wanted),
        requeue=_LOOK_AGAIN if made and not active else _until_change(inputs, wanted),
    )


def _scheduled(inputs: PlanInputs, wanted: Autoscaling) -> Object:
    """Return the status of schedules; empty without one."""
    if not wanted.schedules:
        return {}
    bounds = bounds_at(wanted, inputs.observed.now)
    told: Object = {
        "minReplicas": bounds.low,
        "maxReplicas": bounds.high,
        "activeSchedules": list(bounds.active),
    }
    if bounds.change is not None:
        told["nextChange"] = bounds.change.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"scaling": told}


def _until_change(inputs: PlanInputs, wanted: Autoscaling) -> float | None:
    """Return the seconds after which schedules are told anew; None = never."""
    now = inputs.observed.now
    until = bounds_at(wanted, now).certain
    return None if until is None else max(1.0, (until - now).total_seconds())


_LOOK_AGAIN = 30.0
"""Seconds after which an autoscaler that does not work is looked at again: none is watched."""

_Verdict = tuple[bool | None, Reason, str]
_ACTIVE: _Verdict = (True, Reason.AS_EXPECTED, "")


def _ours(inputs: PlanInputs) -> _Verdict:
    """Tell if the operator scales the model, by its last looks."""
    found = inputs.observed.scaling
    if found is None:
        return None, Reason.METRICS_MISSING, "The operator has not looked at the load yet."
    if found.by:
        return (
            False,
            Reason.SCALED_BY_ANOTHER,
            f"{found.by} scales this, too, so the operator does not; delete it, or remove"
            " spec.autoscaling.",
        )
    if found.message:
        stays = f"replicas stay at {inputs.spec.replicas}"
        return False, Reason.METRICS_MISSING, f"The load is not known, so {stays}: {found.message}."
    return _ACTIVE


def _hpa(inputs: PlanInputs) -> _Verdict:
    stays = f"replicas stay at {inputs.spec.replicas}"
    if AUTOSCALERS.plural not in inputs.settings.optional_kinds:
        return _missing(
            f"The operator may make no HorizontalPodAutoscaler: {stays}. Add"
            " horizontalpodautoscalers to operator.optionalKinds of the chart."
        )
    told = _told(inputs, "ScalingActive")
    if told != _ACTIVE and not inputs.settings.external_metrics_port:
        return _missing(
            f"The operator serves no metrics to autoscalers: {stays}."
            " Set externalMetrics.enabled=true in the chart."
        )
    return told or _SILENT


def _keda(inputs: PlanInputs) -> _Verdict:
    if SCALED_OBJECTS.plural not in inputs.observed.optional:
        return _missing(
            f"KEDA is not installed, or operator.optionalKinds of the chart has no scaledobjects:"
            f" replicas stay at {inputs.spec.replicas}."
        )
    return _told(inputs, "Ready") or _SILENT


_VERDICTS = {"kvasir": _ours, "hpa": _hpa, "keda": _keda}


def _missing(message: str) -> _Verdict:
    return False, Reason.METRICS_MISSING, message


_SILENT: _Verdict = (
    None,
    Reason.METRICS_MISSING,
    "The autoscaler has not said yet if it has its metric.",
)


def _told(inputs: PlanInputs, kind: str) -> _Verdict | None:
    """Return what the autoscaler says of itself; None if it says nothing."""
    told = condition(inputs.observed.autoscaler or {"metadata": {}}, kind)
    if told.get("status") == "True":
        return _ACTIVE
    if told.get("status") == "False":
        why = told.get("message") or told.get("reason")
        return _missing(f"The autoscaler cannot work: {why}")
    return None


def _target(inputs: PlanInputs) -> Object:
    return {
        "apiVersion": LLMDEPLOYMENTS.api_version,
        "kind": "LLMDeployment",
        "name": inputs.name,
    }


def _autoscaler(inputs: PlanInputs, wanted: Autoscaling) -> Object:
    metric = {
        "name": f"kvasir_{wanted.metric}",
        "selector": {"matchLabels": {"deployment": inputs.name}},
    }
    average = {"type": "AverageValue", "averageValue": str(wanted.target)}
    return {
        "scaleTargetRef": _target(inputs),
        "minReplicas": wanted.min_replicas,
        "maxReplicas": wanted.max_replicas,
        "metrics": [{"type": "External", "external": {"metric": metric, "target": average}}],
    }


def _scaled_object(inputs: PlanInputs, wanted: Autoscaling) -> Object:
    """Return the ScaledObject's spec: KEDA asks every endpoint of the routers' Service."""
    host = f"{inputs.settings.router_admin_service}.{inputs.settings.router_namespace}.svc"
    port = inputs.settings.router_admin_port
    model = quote(inputs.deployment.served_names[0], safe="/")
    return {
        "scaleTargetRef": _target(inputs),
        "minReplicaCount": wanted.min_replicas,
        "maxReplicaCount": wanted.max_replicas,
        "triggers": [
            {
                "type": "metrics-api",
                "metricType": "AverageValue",
                "metadata": {
                    "url": f"http://{host}:{port}/scaling/{model}",
                    "valueLocation": wanted.metric,
                    "targetValue": str(wanted.target),
                    "aggregateFromKubeServiceEndpoints": "true",
                    "aggregationType": _AGGREGATIONS[wanted.metric],
                },
            }
        ],
    }
