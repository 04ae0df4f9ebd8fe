"""What is followed of pods, and what counts as held at rest. Pods' metrics are a stand-in's."""

from __future__ import annotations

from typing import Any

import pytest
from soaking import watching
from soaking.watching import AT_REST, Watch, held_by, metrics_url

METRICS: dict[str, dict[str, float]] = {
    "http://10.0.0.1:8081/metrics": dict(AT_REST["router"]),
    "http://10.0.0.2:8000/metrics": dict(AT_REST["engine"]),
}


def pod(address: str) -> dict[str, Any]:
    return {"metadata": {"name": f"pod-{address[-1]}"}, "status": {"podIP": address}}


PODS = [("router", pod("10.0.0.1")), ("engine", pod("10.0.0.2")), ("engine", pod("10.0.0.3"))]


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, float]]:
    there = {url: dict(found) for url, found in METRICS.items()}

    def gauges(url: str) -> dict[str, float]:
        if url not in there:
            raise ConnectionRefusedError(url)
        return there[url]

    monkeypatch.setattr(watching, "gauges", gauges)
    return there


def test_nothing_is_held_at_rest_and_who_does_not_answer_is_not_counted(metrics: Any) -> None:
    assert held_by(PODS) == ([], 2)


def test_what_is_held_is_named_with_its_pod(metrics: Any) -> None:
    metrics[metrics_url(*PODS[0])]["kvasir_router_body_bytes"] = 12.0
    metrics[metrics_url(*PODS[1])]["kvasir_kv_cache_usage_perc"] = 0.5
    held, answered = held_by(PODS)
    assert answered == 2
    assert [each.split(":")[0] for each in held] == ["pod-1", "pod-2"]
    assert "kvasir_router_body_bytes" in held[0]
    assert "kvasir_kv_cache_usage_perc" in held[1]


def test_gauges_are_followed_by_part_and_blocks_are_counted() -> None:
    nothing: Any = None
    watch = Watch(nothing, nothing, [], {}, kv_blocks=1000)
    watch.note("engine", {"kvasir_kv_cache_usage_perc": 0.25, "kvasir_num_requests_running": 3.0})
    watch.note("operator", {"kvasir_operator_queue_length": 2.0, "another": 9.0})
    assert {name: [value for _, value in found] for name, found in watch.gauges.items()} == {
        ("engine", "kvasir_num_requests_running"): [3.0],
        ("engine", "kvasir_num_requests_waiting"): [0.0],
        ("engine", "kvasir_kv_cache_blocks_held"): [250.0],
        ("operator", "kvasir_operator_queue_length"): [2.0],
    }
