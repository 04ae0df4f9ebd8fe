"""Spans on their way to a collector."""

from kvasir_router.tracing.exporter import SpanExporter
from kvasir_router.tracing.span import Span


def end(exporter: SpanExporter, span: Span, **options) -> None:
    attributes = {"url.path": "/v1/x", "http.response.status_code": 200, "kvasir.tenant": ""}
    exporter.end(span, "POST /v1/x", span.started + 5, attributes, failed=False, **options)


def test_spans_are_sent_as_otlp(collector) -> None:
    exporter = SpanExporter(collector.url + "/", dropped=lambda count: None)
    span = Span("a" * 32, "b" * 16)
    end(exporter, span, first_byte=span.started + 3)
    exporter.close()
    [(path, content_type, body)] = collector.requests
    assert (path, content_type) == ("/v1/traces", "application/json")
    assert b'"kvasir-router"' in body
    [sent] = collector.spans
    assert sent["traceId"] == "a" * 32
    assert sent["parentSpanId"] == "b" * 16
    assert int(sent["endTimeUnixNano"]) - int(sent["startTimeUnixNano"]) == 5
    assert sent["events"][0]["name"] == "first_byte"
    assert sent["attributes"] == [
        {"key": "url.path", "value": {"stringValue": "/v1/x"}},
        {"key": "http.response.status_code", "value": {"intValue": "200"}},
    ]


def test_many_spans_go_in_batches(collector) -> None:
    exporter = SpanExporter(collector.url, dropped=lambda count: None)
    for _ in range(1200):
        end(exporter, Span("a" * 32, ""))
    exporter.close(timeout=30)
    assert len(collector.spans) == 1200
    assert len(collector.requests) < 20


def test_a_collector_that_refuses_costs_spans_and_nothing_else(collector) -> None:
    dropped = []
    collector.status = 503
    exporter = SpanExporter(collector.url, dropped=dropped.append)
    end(exporter, Span("a" * 32, ""))
    exporter.close(timeout=30)
    assert sum(dropped) == 1


def test_a_collector_that_is_not_there(collector) -> None:
    dropped = []
    exporter = SpanExporter("http://127.0.0.1:1", dropped=dropped.append)
    for _ in range(3):
        end(exporter, Span("a" * 32, ""))
    exporter.close(timeout=30)
    assert sum(dropped) == 3


def test_no_more_than_so_many_wait(collector, monkeypatch) -> None:
    monkeypatch.setattr("kvasir_router.tracing.exporter._MAX_WAITING", 10)
    monkeypatch.setattr("kvasir_router.tracing.exporter._SECONDS", 60.0)
    dropped = []
    exporter = SpanExporter(collector.url, dropped=dropped.append)
    for _ in range(15):
        end(exporter, Span("a" * 32, ""))
    assert sum(dropped) == 5
    exporter.close(timeout=30)
    assert len(collector.spans) == 10
