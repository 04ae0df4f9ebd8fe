"""PodMonitor and PrometheusRule of a deployment, where Prometheus' operator is installed."""

from __future__ import annotations

import re

from kvasir.kube.objects import Object
from kvasir.resource import labels
from kvasir.resource.engines.traits import MetricNames
from kvasir_operator.kinds import POD_MONITORS, RULES
from kvasir_operator.plan.step import PlanInputs, StepResult


def plan_monitoring(inputs: PlanInputs) -> StepResult:
    """Want a PodMonitor and a PrometheusRule, or their removal."""
    wanted = inputs.spec.monitoring
    # An engine that names no metrics may have none to scrape
    has_metrics = inputs.spec.engine.type != "custom" or inputs.spec.engine.metrics is not None
    wishes = (
        (POD_MONITORS, wanted.pod_monitor and has_metrics, _pod_monitor(inputs)),
        (RULES, wanted.alerts and has_metrics, _alerts(inputs)),
    )
    possible = [it for it in wishes if it[0].plural in inputs.observed.optional]
    return StepResult(
        manifests=tuple(manifest for _, wish, manifest in possible if wish),
        deletions=tuple(manifest for _, wish, manifest in possible if not wish),
    )


def _pod_monitor(inputs: PlanInputs) -> Object:
    return inputs.child(
        POD_MONITORS.api_version,
        "PodMonitor",
        inputs.name,
        spec={
            "selector": {"matchLabels": labels.identity(inputs.name, labels.ENGINE)},
            "podTargetLabels": [labels.DEPLOYMENT],
            "podMetricsEndpoints": [
                {"port": "http", "path": _metrics(inputs)[0], "interval": "15s"}
            ],
        },
    )


def _metrics(inputs: PlanInputs) -> tuple[str, MetricNames]:
    """Return the path of the engine's metrics and the names of those that tell its load."""
    engine = inputs.spec.engine
    if engine.type == "custom":
        return engine.custom_api.metrics_path, engine.custom_api.metrics or MetricNames()
    return engine.traits.metrics_path, engine.traits.metrics


def _alerts(inputs: PlanInputs) -> Object:
    # By the label that the PodMonitor adds: names of pods of long names are cut off
    label = re.sub("[^a-zA-Z0-9_]", "_", labels.DEPLOYMENT)
    pods = f'namespace="{inputs.namespace}",{label}="{inputs.name}"'
    names = _metrics(inputs)[1]
    rules = [
        _alert(
            "KvasirEngineDown",
            # A Prometheus that NetworkPolicies keep out has never seen it up
            f"up{{{pods}}} == 0 and max_over_time(up{{{pods}}}[1h]) == 1",
            "5m",
            "critical",
            "Engine {{ $labels.pod }} has not answered for 5 minutes.",
        ),
        *(_queue_alert(inputs, name, pods) for name in names.waiting[:1]),
        *(_cache_alert(inputs, name, pods) for name in names.kv_usage[:1]),
        *((_stale_file_alert(pods),) if inputs.spec.engine.type == "kvasir" else ()),
    ]
    groups = [{"name": f"kvasir-{inputs.name}", "rules": rules}]
    return inputs.child(RULES.api_version, "PrometheusRule", inputs.name, spec={"groups": groups})


def _queue_alert(inputs: PlanInputs, waiting: str, pods: str) -> Object:
    # Routers give an engine a few requests more than it runs, and keep the others
    summary = f"Requests have waited at engines of {inputs.name} for 10 minutes; add replicas."
    return _alert("KvasirQueueGrows", f"avg({waiting}{{{pods}}}) > 2", "10m", "warning", summary)


def _cache_alert(inputs: PlanInputs, usage: str, pods: str) -> Object:
    return _alert(
        "KvasirCacheFull",
        f"avg({usage}{{{pods}}}) > 0.95",
        "10m",
        "warning",
        f"The KV caches of {inputs.name} are full; requests are preempted. Add replicas.",
    )


def _stale_file_alert(pods: str) -> Object:
    return _alert(
        "KvasirEngineFileStale",
        f"max by (namespace, pod, file) (kvasir_stale_files{{{pods}}}) == 1",
        "5m",
        "warning",
        "Engine {{ $labels.pod }} cannot use its {{ $labels.file }} file as it is now; what it "
        "held before still counts. Its log says why.",
    )


def _alert(name: str, expression: str, wait: str, severity: str, summary: str) -> Object:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    }
