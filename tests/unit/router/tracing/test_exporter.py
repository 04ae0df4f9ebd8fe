"""Spans on their way to a collector."""

import pytest

from kvasir_router.tracing.exporter import Spans
from kvasir_router.tracing.span import Span

TRACE, PARENT = 0xA1 << 120 | 7, 0xB2 << 56 | 9


def end(spans: Spans, span: Span, **options) -> None:
    attributes = {"url.path": "/v1/x", "http.response.status_code": 200, "kvasir.tenant": ""}
    spans.end(span, "POST /v1/x", span.started + 5, attributes, failed=False, **options)


def test_spans_are_sent_as_otlp(collector, values) -> None:
    spans = Spans(collector.url + "/", dropped=lambda count: None)
    span = Span(TRACE, PARENT)
    end(spans, span, first_byte=span.started + 3)
    spans.close()
    [(path, headers, _)] = collector.requests
    assert (path, headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
    [resource] = collector.resources
    assert values(resource.resource.attributes) == {"service.name": "kvasir-router"}
    [sent] = collector.spans
    assert int.from_bytes(sent.trace_id, "big") == TRACE
    assert int.from_bytes(sent.span_id, "big") == span.span_id
    assert int.from_bytes(sent.parent_span_id, "big") == PARENT
    assert sent.start_time_unix_nano == span.started
    assert sent.end_time_unix_nano == span.started + 5
    assert sent.kind == sent.SPAN_KIND_SERVER
    [event] = sent.events
    assert (event.name, event.time_unix_nano) == ("first_byte", span.started + 3)
    assert values(sent.attributes) == {"url.path": "/v1/x", "http.response.status_code": 200}


def test_the_environment_is_heeded(collector, values, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=s3cret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    spans = Spans(collector.url, dropped=lambda count: None)
    for _ in range(5):
        end(spans, Span(TRACE, 0))
    spans.close(timeout=30)
    assert len(collector.requests) == 3
    assert {headers["x-token"] for _, headers, _ in collector.requests} == {"s3cret"}
    assert len(collector.spans) == 5
    assert values(collector.resources[0].resource.attributes) == {
        "service.name": "edge",
        "deployment.environment": "test",
    }


def test_many_spans_go_in_batches(collector) -> None:
    spans = Spans(collector.url, dropped=lambda count: None)
    for _ in range(1200):
        end(spans, Span(TRACE, 0))
    spans.close(timeout=30)
    assert len(collector.spans) == 1200
    assert len(collector.requests) < 20


def test_a_collector_that_refuses_costs_spans_and_nothing_else(collector) -> None:
    dropped: list[int] = []
    collector.status = 400
    spans = Spans(collector.url, dropped=dropped.append)
    end(spans, Span(TRACE, 0))
    spans.close(timeout=30)
    assert sum(dropped) == 1


def test_a_collector_that_is_not_there(monkeypatch) -> None:
    dropped: list[int] = []
    spans = Spans("http://127.0.0.1:1", dropped=dropped.append)
    for _ in range(3):
        end(spans, Span(TRACE, 0))
    spans.close(timeout=0.1)
    spans.close(timeout=30)
    assert sum(dropped) == 3


@pytest.mark.parametrize("size", ["10", "nonsense"])
def test_no_more_than_so_many_wait(collector, monkeypatch, size: str) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", size)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    monkeypatch.setattr("kvasir_router.tracing.exporter._MAX_WAITING", 12)
    dropped: list[int] = []
    spans = Spans(collector.url, dropped=dropped.append)
    spans._exporter.export = lambda batch: None  # type: ignore[method-assign]
    for _ in range(15):
        end(spans, Span(TRACE, 0))
    assert sum(dropped) == 15 - (10 if size == "10" else 12)
    spans.close(timeout=30)
