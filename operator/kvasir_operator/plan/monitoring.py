"""What Prometheus' operator is told about a deployment, where it is installed."""

from __future__ import annotations

from kvasir.resource import labels
from kvasir_operator.kinds import POD_MONITORS, RULES
from kvasir_operator.objects import Object
from kvasir_operator.plan.draft import Draft


def add_monitoring(draft: Draft) -> None:
    """A PodMonitor and a PrometheusRule, or their removal."""
    wanted = draft.deployment.spec.monitoring
    for plural, wish, manifest in (
        (POD_MONITORS.plural, wanted.pod_monitor, _pod_monitor(draft)),
        (RULES.plural, wanted.alerts, _alerts(draft)),
    ):
        if plural in draft.observed.optional:
            (draft.manifests if wish else draft.deletions).append(manifest)


def _pod_monitor(draft: Draft) -> Object:
    return draft.child(
        POD_MONITORS.api_version,
        "PodMonitor",
        draft.name,
        spec={
            "selector": {"matchLabels": labels.identity(draft.name, labels.ENGINE)},
            "podTargetLabels": [labels.DEPLOYMENT],
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
        },
    )


def _alerts(draft: Draft) -> Object:
    pods = f'namespace="{draft.namespace}",pod=~"{draft.name}-[a-z0-9]+-[a-z0-9]{{5}}"'
    rules = [
        _alert(
            "KvasirEngineDown",
            f"up{{{pods}}} == 0",
            "5m",
            "critical",
            "Engine {{ $labels.pod }} has not answered for 5 minutes.",
        ),
        _alert(
            "KvasirQueueGrows",
            f"sum(kvasir_num_requests_waiting{{{pods}}}) > 20",
            "10m",
            "warning",
            f"Requests have waited at engines of {draft.name} for 10 minutes; add replicas.",
        ),
        _alert(
            "KvasirCacheFull",
            f"avg(kvasir_kv_cache_usage_perc{{{pods}}}) > 0.95",
            "10m",
            "warning",
            f"The KV caches of {draft.name} are full; requests are preempted. Add replicas.",
        ),
    ]
    groups = [{"name": f"kvasir-{draft.name}", "rules": rules}]
    return draft.child(RULES.api_version, "PrometheusRule", draft.name, spec={"groups": groups})


def _alert(name: str, expression: str, wait: str, severity: str, summary: str) -> Object:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    }
