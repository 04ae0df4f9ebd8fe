"""PodMonitor and PrometheusRule of a deployment, where Prometheus' operator is installed."""

from __future__ import annotations

import re

from kvasir.kube.objects import Object
from kvasir.resource import labels
from kvasir_operator.kinds import POD_MONITORS, RULES
from kvasir_operator.plan.step import PlanInputs, StepResult


def plan_monitoring(inputs: PlanInputs) -> StepResult:
    """Want a PodMonitor and a PrometheusRule, or their removal."""
    wanted = inputs.spec.monitoring
    wishes = (
        (POD_MONITORS, wanted.pod_monitor, _pod_monitor(inputs)),
        (RULES, wanted.alerts, _alerts(inputs)),
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
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
        },
    )


def _alerts(inputs: PlanInputs) -> Object:
    # By the label that the PodMonitor adds: names of pods of long names are cut off
    label = re.sub("[^a-zA-Z0-9_]", "_", labels.DEPLOYMENT)
    pods = f'namespace="{inputs.namespace}",{label}="{inputs.name}"'
    rules = [
        _alert(
            "KvasirEngineDown",
            # A Prometheus that NetworkPolicies keep out has never seen it up
            f"up{{{pods}}} == 0 and max_over_time(up{{{pods}}}[1h]) == 1",
            "5m",
            "critical",
            "Engine {{ $labels.pod }} has not answered for 5 minutes.",
        ),
        _alert(
            "KvasirQueueGrows",
            # Routers give an engine a few requests more than it runs, and keep the others
            f"avg(kvasir_num_requests_waiting{{{pods}}}) > 2",
            "10m",
            "warning",
            f"Requests have waited at engines of {inputs.name} for 10 minutes; add replicas.",
        ),
        _alert(
            "KvasirCacheFull",
            f"avg(kvasir_kv_cache_usage_perc{{{pods}}}) > 0.95",
            "10m",
            "warning",
            f"The KV caches of {inputs.name} are full; requests are preempted. Add replicas.",
        ),
        _alert(
            "KvasirEngineFileStale",
            f"max by (namespace, pod, file) (kvasir_stale_files{{{pods}}}) == 1",
            "5m",
            "warning",
            "Engine {{ $labels.pod }} cannot use its {{ $labels.file }} file as it is now; what it "
            "held before still counts. Its log says why.",
        ),
    ]
    groups = [{"name": f"kvasir-{inputs.name}", "rules": rules}]
    return inputs.child(RULES.api_version, "PrometheusRule", inputs.name, spec={"groups": groups})


def _alert(name: str, expression: str, wait: str, severity: str, summary: str) -> Object:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    }
