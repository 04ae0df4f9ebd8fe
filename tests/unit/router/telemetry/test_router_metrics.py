"""Metrics in Prometheus' text format."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvasir_router.telemetry.model_metrics import Distribution
from kvasir_router.telemetry.router_metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def test_a_distribution_is_cumulative_with_inclusive_bounds() -> None:
    distribution = Distribution()
    for seconds in (0.0005, 0.001, 0.0011, 250.0, 1000.0):
        distribution.observe(seconds)
    buckets = dict(distribution.buckets())
    assert buckets["0.001"] == 2
    assert buckets["0.0025"] == 3
    assert buckets["120.0"] == 3
    assert buckets["300.0"] == 4
    assert buckets["+Inf"] == 5


def test_the_text_parses_and_holds_what_was_counted(metrics: Metrics) -> None:
    model = metrics.model("m")
    model.codes[200] += 2
    model.retries["reset"] += 1
    model.duration.observe(0.02)
    families = {
        family.name: family for family in text_string_to_metric_families(metrics.text().decode())
    }
    assert all(name.startswith("kvasir_router_") for name in families)
    [requests] = families["kvasir_router_requests"].samples
    assert (requests.labels, requests.value) == ({"model": "m", "code": "200"}, 2)
    samples = families["kvasir_router_request_duration_seconds"].samples
    assert [sample.value for sample in samples if sample.name.endswith("_count")] == [1]


def test_series_go_with_their_model(metrics: Metrics) -> None:
    for name in ("", "a", "b"):
        metrics.model(name).codes[200] += 1
    metrics.keep_models({"b"})
    text = metrics.text().decode()
    assert 'model="a"' not in text
    assert 'model="b"' in text
    assert 'model=""' in text
