from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, generate_latest

from kvasir_router.telemetry.metric_families import by_labels, families_of, text_of
from kvasir_router.telemetry.router_metrics import PREFIX


def counted() -> CollectorRegistry:
    registry = CollectorRegistry()
    requests = Counter(PREFIX + "requests", "Requests.", ("model", "code"), registry=registry)
    requests.labels("m", "200").inc(3)
    requests.labels("m", "503").inc()
    return registry


def test_the_text_is_prometheus_own() -> None:
    registry = counted()
    assert text_of(families_of(registry.collect())) == generate_latest(registry)


def test_values_by_labels_in_alphabetical_order() -> None:
    families = families_of(counted().collect())
    assert by_labels(families, "requests_total") == {
        (("code", "200"), ("model", "m")): 3.0,
        (("code", "503"), ("model", "m")): 1.0,
    }
    assert by_labels(families, "retries_total") == {}
