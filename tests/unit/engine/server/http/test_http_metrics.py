from __future__ import annotations

from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.server.http.http_metrics import HttpMetrics


def test_unknown_paths_share_one_label() -> None:
    registry = MetricRegistry("kvasir_", "tiny")
    metrics = HttpMetrics(registry, ["/known"])
    answers = [("/known", 200), ("/known", 200), ("/known", 404), ("/a", 404), ("/b", 404)]
    for path, status in answers:
        metrics.count(path, status, 0.02)
    text = registry.exposition().decode()
    total = 'kvasir_http_requests_total{engine="0",handler="%s",model_name="tiny",status="%d"} %.1f'
    for path, status, count in (("/known", 200, 2), ("/known", 404, 1), ("other", 404, 2)):
        assert total % (path, status, count) in text
    assert text.count("kvasir_http_requests_total{") == 3
    seconds = 'kvasir_http_response_start_seconds_bucket{engine="0",le="%s",model_name="tiny"} %.1f'
    assert seconds % ("0.01", 0) in text
    assert seconds % ("0.05", 5) in text
