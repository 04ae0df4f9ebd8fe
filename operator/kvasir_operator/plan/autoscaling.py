"""Who sets the replicas: KEDA where it is installed, else a HorizontalPodAutoscaler."""

from __future__ import annotations

from urllib.parse import quote

from kvasir.resource.autoscaling_spec import Autoscaling
from kvasir_operator.kinds import AUTOSCALERS, LLMDEPLOYMENTS, SCALED_OBJECTS
from kvasir_operator.objects import Object
from kvasir_operator.plan.draft import Draft

_OF_ROUTERS = {"concurrency": "sum", "queue": "sum", "in_flight_tokens": "max"}
"""How routers' numbers become one. Each knows the requests that came to it, so they add up, but of
prompts that engines still have to compute each knows all. Of a queue the most is in the routers."""


def add_autoscaling(draft: Draft) -> None:
    """A ScaledObject or a HorizontalPodAutoscaler; the other one, or both, are taken away.

    Taking one away changes no replicas: they are in the LLMDeployment's own spec.
    """
    wanted = draft.deployment.spec.autoscaling
    has_keda = SCALED_OBJECTS.plural in draft.observed.optional
    scaled_object = draft.child(SCALED_OBJECTS.api_version, "ScaledObject", draft.name)
    autoscaler = draft.child(AUTOSCALERS.api_version, "HorizontalPodAutoscaler", draft.name)
    if wanted is not None and has_keda:
        draft.manifests.append({**scaled_object, "spec": _scaled_object(draft, wanted)})
    elif wanted is not None:
        draft.manifests.append({**autoscaler, "spec": _autoscaler(draft, wanted)})
    if has_keda and wanted is None:
        draft.deletions.append(scaled_object)
    if has_keda or wanted is None:
        draft.deletions.append(autoscaler)


def _target(draft: Draft) -> Object:
    return {
        "apiVersion": LLMDEPLOYMENTS.api_version,
        "kind": "LLMDeployment",
        "name": draft.name,
    }


def _autoscaler(draft: Draft, wanted: Autoscaling) -> Object:
    metric = {
        "name": f"kvasir_{wanted.metric}",
        "selector": {"matchLabels": {"deployment": draft.name}},
    }
    average = {"type": "AverageValue", "averageValue": str(wanted.target)}
    return {
        "scaleTargetRef": _target(draft),
        "minReplicas": wanted.min_replicas,
        "maxReplicas": wanted.max_replicas,
        "metrics": [{"type": "External", "external": {"metric": metric, "target": average}}],
    }


def _scaled_object(draft: Draft, wanted: Autoscaling) -> Object:
    """KEDA asks every endpoint of the routers' Service."""
    host = f"{draft.settings.router_admin_service}.{draft.settings.router_namespace}.svc"
    port = draft.settings.router_admin_port
    model = quote(draft.deployment.served_names[0], safe="/")
    return {
        "scaleTargetRef": _target(draft),
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
                    "aggregationType": _OF_ROUTERS[wanted.metric],
                },
            }
        ],
    }
