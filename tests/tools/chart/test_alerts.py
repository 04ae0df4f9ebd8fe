"""Alerts, judged by promtool: silent on a healthy default install, each one told by its fault."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir_operator.plan import plan
from kvasir_operator.plan.observed import Observed, parse_resource
from kvasir_operator.settings import Images, OperatorSettings

LONG = "m" * 60
"""A name that pods' names have only the beginning of."""
ENGINE = f'namespace="models",kvasir_dev_deployment="{LONG}",pod="engine"'
ROUTER = 'namespace="kvasir",pod="router"'
MODEL = f'{ROUTER},model="{LONG}"'
OPERATOR = 'namespace="kvasir",pod="operator"'
DEPLOYMENT = f'namespace="models",name="{LONG}"'

HEALTHY = {
    f"up{{{ENGINE}}}": "1+0x180",
    f"kvasir_num_requests_waiting{{{ENGINE}}}": "0 4 0 1 0 2 0 0x180",
    f"kvasir_kv_cache_usage_perc{{{ENGINE}}}": "0.5+0x180",
    f'kvasir_stale_files{{{ENGINE},file="fleet secret"}}': "0+0x180",
    f'kvasir_router_replica_ready{{{MODEL},replica="a"}}': "1+0x180",
    f'kvasir_router_requests_total{{{MODEL},code="200"}}': "0+600x180",
    f'kvasir_router_requests_total{{{MODEL},code="500"}}': "0+1x180",
    f"kvasir_router_broken_answers_total{{{MODEL}}}": "0+1x180",
    f'kvasir_router_queue_refusals_total{{{MODEL},reason="full"}}': "0+0x180",
    f"kvasir_router_waiting_requests{{{MODEL}}}": "0 9 0 5 0x180",
    f"kvasir_router_discovery_good{{{ROUTER}}}": "1+0x180",
    f'kvasir_router_stale_files{{{ROUTER},file="keys"}}': "0+0x180",
    f'kvasir_router_task_failures_total{{{ROUTER},task="sweep"}}': "0+0x180",
    f"kvasir_operator_leader{{{OPERATOR}}}": "1+0x180",
    f'kvasir_operator_reconciles_total{{{OPERATOR},result="error"}}': "0+0x180",
    f"kvasir_llmdeployment_ready{{{DEPLOYMENT}}}": "0+0x20 1+0x160",
    f"kvasir_llmdeployment_wanted_replicas{{{DEPLOYMENT}}}": "1+0x180",
}
"""Three hours of one release and one model, a value each minute."""
BLOCKED = {f"up{{{labels}}}": "0+0x180" for labels in (ENGINE, ROUTER, OPERATOR)}
"""What a Prometheus sees that NetworkPolicies keep out: that nobody answers."""
IDLE = {
    f"kvasir_llmdeployment_ready{{{DEPLOYMENT}}}": "0+0x180",
    f"kvasir_llmdeployment_wanted_replicas{{{DEPLOYMENT}}}": "0+0x180",
    f"kvasir_router_waiting_requests{{{MODEL}}}": "0+0x180",
}
"""A model that is scaled to zero."""

CANARY = {
    f'kvasir_llmdeployment_canary_phase{{{DEPLOYMENT},phase="Analysing"}}': "1+0x180",
    f'kvasir_llmdeployment_canary_phase{{{DEPLOYMENT},phase="RolledBack"}}': "0+0x180",
    f"kvasir_llmdeployment_ready{{{DEPLOYMENT}}}": "0+0x180",
}
"""A new revision that is tried for hours."""

FAULTS = {
    "KvasirEngineDown": {f"up{{{ENGINE}}}": "1+0x60 0+0x120"},
    "KvasirQueueGrows": {f"kvasir_num_requests_waiting{{{ENGINE}}}": "0+0x60 4+0x120"},
    "KvasirCacheFull": {f"kvasir_kv_cache_usage_perc{{{ENGINE}}}": "0.5+0x60 1+0x120"},
    "KvasirEngineFileStale": {f'kvasir_stale_files{{{ENGINE},file="keys"}}': "0+0x60 1+0x120"},
    "KvasirModelUnavailable": {
        f'kvasir_router_replica_ready{{{MODEL},replica="a"}}': "1+0x60 0+0x120"
    },
    "KvasirDeploymentNotReady": {
        f"kvasir_llmdeployment_ready{{{DEPLOYMENT}}}": "1+0x20 0+0x160",
        # No replica is left, and so no series
        f'kvasir_router_replica_ready{{{MODEL},replica="a"}}': "1+0x20 stale",
    },
    "KvasirCanaryRolledBack": {
        f'kvasir_llmdeployment_canary_phase{{{DEPLOYMENT},phase="RolledBack"}}': "0+0x60 1+0x120",
        f"kvasir_llmdeployment_ready{{{DEPLOYMENT}}}": "1+0x60 0+0x120",
    },
    "KvasirErrors": {f'kvasir_router_requests_total{{{MODEL},code="500"}}': "0+60x180"},
    "KvasirRequestsWaitInVain": {
        f'kvasir_router_queue_refusals_total{{{MODEL},reason="full"}}': "0+60x180"
    },
    "KvasirQueueLong": {f"kvasir_router_waiting_requests{{{MODEL}}}": "0+0x60 3+0x120"},
    "KvasirGpuFaults": {f"kvasir_operator_gpu_faults_total{{{DEPLOYMENT}}}": "_x110 1+0x70"},
    "KvasirOperatorFails": {
        f'kvasir_operator_reconciles_total{{{OPERATOR},result="error"}}': "_x110 1+0x70"
    },
    "KvasirNoOperator": {f"kvasir_operator_leader{{{OPERATOR}}}": "0+0x180"},
    "KvasirRouterFails": {
        f'kvasir_router_task_failures_total{{{ROUTER},task="sweep"}}': "_x110 1+0x70"
    },
    "KvasirDiscoveryStale": {f"kvasir_router_discovery_good{{{ROUTER}}}": "0+0x180"},
    "KvasirFileStale": {f'kvasir_router_stale_files{{{ROUTER},file="keys"}}': "0+0x60 1+0x120"},
    "KvasirBrokenAnswers": {f"kvasir_router_broken_answers_total{{{MODEL}}}": "0+60x180"},
}
"""Each alert, with the series in which its fault differs from health."""


def groups(charts: Path) -> list[dict[str, Any]]:
    """The chart's rules and the operator's."""
    resource = {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": LONG, "namespace": "models", "uid": "u", "generation": 1},
        "spec": {"model": {"uri": "builtin://kvasir-tiny"}},
    }
    observed = Observed(
        resource, datetime(2026, 1, 1, tzinfo=UTC), optional=frozenset({"prometheusrules"})
    )
    settings = OperatorSettings(namespace="kvasir", images=Images(cpu="x"))
    manifests = plan(parse_resource(resource), observed, settings).manifests
    [own] = [each for each in manifests if each["kind"] == "PrometheusRule"]
    chart = yaml.safe_load((charts / "kvasir/files/rules.yaml").read_text())
    return [*chart["groups"], *own["spec"]["groups"]]


@pytest.fixture
def firing(promtool, charts, tmp_path):
    """firing(series, alert): promtool fails unless just `alert` fires at the end, or none."""
    rules = groups(charts)
    names = [rule["alert"] for group in rules for rule in group["rules"]]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": rules}))

    def judge(series: dict[str, str], *expected: str) -> None:
        counted = [
            {
                "expr": f'count(ALERTS{{alertstate="firing",alertname="{name}"}}) or vector(0)',
                "eval_time": time,
                "exp_samples": [{"labels": "{}", "value": int(name in expected)}],
            }
            for name in names
            for time in (["2h"] if expected else [f"{minutes}m" for minutes in range(0, 181, 10)])
        ]
        test = {
            "rule_files": ["rules.json"],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": [
                        {"series": name, "values": values} for name, values in series.items()
                    ],
                    "promql_expr_test": counted,
                }
            ],
        }
        (tmp_path / "test.json").write_text(json.dumps(test))
        promtool("test", "rules", tmp_path / "test.json")

    return judge


@pytest.mark.parametrize(
    "series",
    [HEALTHY, BLOCKED, HEALTHY | IDLE, HEALTHY | CANARY, {}],
    ids=["healthy", "blocked", "idle", "canary", "nothing"],
)
def test_nothing_is_told_of_a_healthy_install(firing, series) -> None:
    firing(series)


@pytest.mark.parametrize("alert", FAULTS)
def test_a_fault_is_told_by_its_alert_alone(firing, alert) -> None:
    firing(HEALTHY | FAULTS[alert], alert)


GONE = ("kvasir_operator_leader", "kvasir_operator_reconciles_total", "kvasir_llmdeployment")
"""Series that an operator's pod has."""


@pytest.mark.parametrize("values", [None, "1+0x60 stale"], ids=["never", "no more"])
def test_an_operator_without_a_pod_is_told(firing, values) -> None:
    series = {name: values or rest for name, rest in HEALTHY.items() if name.startswith(GONE)}
    others = {name: rest for name, rest in HEALTHY.items() if not name.startswith(GONE)}
    firing(others | (series if values else {}), "KvasirNoOperator")


def test_an_operator_of_another_namespace_is_not_this_ones(firing) -> None:
    other = 'kvasir_operator_leader{namespace="other",pod="operator"}'
    own = f"kvasir_operator_leader{{{OPERATOR}}}"
    series = {name: values for name, values in HEALTHY.items() if name != own}
    firing(series | {other: "1+0x180"}, "KvasirNoOperator")


def test_every_alert_has_its_fault(charts) -> None:
    assert {rule["alert"] for group in groups(charts) for rule in group["rules"]} == set(FAULTS)
