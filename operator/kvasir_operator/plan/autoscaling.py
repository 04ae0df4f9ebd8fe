"""Autoscaler of a deployment: KEDA where it is installed, else a HorizontalPodAutoscaler."""

from __future__ import annotations

from urllib.parse import quote

from kvasir.kube.objects import Object, condition
from kvasir.resource.autoscaling_spec import Autoscaling
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.kinds import AUTOSCALERS, LLMDEPLOYMENTS, SCALED_OBJECTS
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.step import PlanInputs, StepResult

_AGGREGATIONS = {"concurrency": "sum", "queue": "sum", "in_flight_tokens": "max"}
"""Aggregation of the routers' numbers. Each router knows the requests that came to it, so they add
up, but each knows all prompts that engines still have to compute. Most of a queue is in routers."""


def plan_autoscaling(inputs: PlanInputs) -> StepResult:
    """Want a ScaledObject or a HorizontalPodAutoscaler, and the other one, or both, deleted.

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
    active, message = _is_active(inputs, has_keda)
    reason = Reason.AS_EXPECTED if active else Reason.METRICS_MISSING
    if has_keda:
        scaled_object["spec"] = _scaled_object(inputs, wanted)
    else:
        autoscaler["spec"] = _autoscaler(inputs, wanted)
    return StepResult(
        manifests=possible[:1],
        deletions=possible[1:],
        conditions=(ConditionValue(ConditionType.SCALING_ACTIVE, active, reason, message),),
        requeue=None if active else _LOOK_AGAIN,
    )


_LOOK_AGAIN = 30.0
"""Seconds after which an autoscaler that does not work is looked at again: none is watched."""


def _is_active(inputs: PlanInputs, has_keda: bool) -> tuple[bool | None, str]:
    """Tell if replicas follow the metric, by what the autoscaler says of itself, and why not."""
    live = inputs.observed.autoscaler or {"metadata": {}}
    told = condition(live, "Ready" if has_keda else "ScalingActive")
    if told.get("status") == "True":
        return True, ""
    stays = f"replicas stay at {inputs.spec.replicas}"
    if not has_keda and AUTOSCALERS.plural not in inputs.settings.optional_kinds:
        return False, (
            f"The operator may make no HorizontalPodAutoscaler and KEDA is not installed: {stays}."
            " Add horizontalpodautoscalers to operator.optionalKinds of the chart, or install KEDA."
        )
    if not has_keda and not inputs.settings.external_metrics_port:
        return False, (
            f"The operator serves no metrics to autoscalers and KEDA is not installed: {stays}."
            " Set externalMetrics.enabled=true in the chart, or install KEDA."
        )
    if told.get("status") == "False":
        return False, f"The autoscaler cannot work: {told.get('message') or told.get('reason')}"
    return None, "The autoscaler has not said yet if it has its metric."


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
