from __future__ import annotations

from typing import Any, get_args

import pytest

from kvasir.resource.autoscaling_spec import Autoscaling
from kvasir_operator.external_metrics.combine import METRICS, quantity


def report(**numbers: Any) -> dict[str, Any]:
    """What a router says of an idle model, with other numbers."""
    percentiles = {"p50": None, "p90": None, "p99": None}
    return {
        "model": "m",
        "concurrency": 0,
        "queue": 0,
        "held": 0,
        "in_flight_tokens": 0,
        "kv_usage": 0.0,
        "average": {"concurrency": 0.0, "kv_usage": 0.0},
        "requests": 0,
        "ttft_seconds": percentiles,
        "itl_seconds": percentiles,
        "slo": {"ratio": None},
        **numbers,
    }


@pytest.mark.parametrize(
    ("metric", "reports", "value"),
    [
        ("kvasir_concurrency", [report(concurrency=5), report(concurrency=7)], 12),
        ("kvasir_concurrency", [report()], 0),
        ("kvasir_average_concurrency", [report(average={"concurrency": 1.25})] * 2, 2.5),
        ("kvasir_requests", [report(requests=3), report(requests=4)], 7),
        # 4 wait in one router, 1 in the other, and in the engines the same 6 that both report
        ("kvasir_queue", [report(queue=10, held=4), report(queue=7, held=1)], 11),
        ("kvasir_in_flight_tokens", [report(in_flight_tokens=9), report(in_flight_tokens=8)], 9),
        ("kvasir_kv_usage", [report(kv_usage=0.5), report(kv_usage=0.25)], 0.5),
        ("kvasir_ttft_seconds_p90", [report(), report(ttft_seconds={"p90": 1.5})], 1.5),
        ("kvasir_itl_seconds_p50", [report(), report()], None),
        ("kvasir_slo_ratio", [report(slo={"ratio": 0.9}), report(slo={"ratio": 0.99})], 0.9),
        ("kvasir_kv_usage", [report(kv_usage="many")], None),
    ],
)
def test_routers_numbers_become_one(metric: str, reports: list[Any], value: float | None) -> None:
    assert METRICS[metric](reports) == value


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12.0, "12"), (2.5, "2500m"), (0.0004, "0m"), (-1.5, "-1500m")]
)
def test_quantities(value: float, text: str) -> None:
    assert quantity(value) == text


def test_whatever_a_deployment_can_scale_on_is_served() -> None:
    (choices,) = [get_args(Autoscaling.model_fields["metric"].annotation)]
    assert {f"kvasir_{choice}" for choice in choices} <= METRICS.keys()
