"""Ended spans, handed to OpenTelemetry's SDK: batched, encoded and sent as OTLP in its thread.

Spans are made when they are over, as the objects that exporters take. The SDK's own tracer would
make each one alive and locked from its start: eight times the work on the request's way, for
nothing that the router needs. Imported only with tracing: the SDK costs a quarter of a second.

What the environment says of OpenTelemetry holds: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
OTEL_BSP_* for the batches, OTEL_EXPORTER_OTLP_* for headers, timeout, compression and certificates.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from kvasir_router.tracing.span import Span

_MAX_WAITING = 2048
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("kvasir_router")
_STATUS = {False: Status(StatusCode.UNSET), True: Status(StatusCode.ERROR)}


class Spans:
    """Take ended spans. When the collector does not keep up or does not answer, spans are dropped
    and `dropped` is called with their number, from any thread; requests never wait."""

    def __init__(self, endpoint: str, dropped: Callable[[int], None]) -> None:
        """`endpoint` is the collector's base URL, as in OTEL_EXPORTER_OTLP_ENDPOINT."""
        self._dropped = dropped
        self._exporter = _Counting(OTLPSpanExporter(endpoint.rstrip("/") + "/v1/traces"), dropped)
        self._room = _queue_size()
        self._processor = BatchSpanProcessor(self._exporter, max_queue_size=self._room)
        self._resource = Resource({SERVICE_NAME: "kvasir-router"}).merge(
            OTELResourceDetector().detect()
        )
        self._taken = 0

    def end(
        self,
        span: Span,
        name: str,
        ended: int,
        attributes: Mapping[str, str | int],
        *,
        failed: bool,
        first_byte: int = 0,
    ) -> None:
        """The span is over; times in Unix nanoseconds, 0 = there was none."""
        if self._taken - self._exporter.seen >= self._room:
            self._dropped(1)
            return
        self._taken += 1
        self._processor.on_end(
            ReadableSpan(
                name,
                context=SpanContext(span.trace_id, span.span_id, False, _SAMPLED),
                parent=SpanContext(span.trace_id, span.parent_id, True, _SAMPLED)
                if span.parent_id
                else None,
                resource=self._resource,
                attributes={key: value for key, value in attributes.items() if value != ""},
                events=(Event("first_byte", timestamp=first_byte),) if first_byte else (),
                kind=SpanKind.SERVER,
                status=_STATUS[failed],
                start_time=span.started,
                end_time=ended,
                instrumentation_scope=_SCOPE,
            )
        )

    def close(self, timeout: float = 2.0) -> None:
        """Send what waits, within `timeout` seconds."""
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(timeout)
        if closing.is_alive():
            self._exporter.shutdown()  # it waits to try again: not any more
            closing.join(timeout)


class _Counting(SpanExporter):
    """Counts spans that are sent, and tells of those that are not."""

    def __init__(self, exporter: SpanExporter, dropped: Callable[[int], None]) -> None:
        self._exporter = exporter
        self._dropped = dropped
        self._closed = False
        self.seen = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """SpanExporter.export."""
        result = self._exporter.export(spans)
        self.seen += len(spans)
        if result is not SpanExportResult.SUCCESS:
            self._dropped(len(spans))
        return result

    def shutdown(self) -> None:
        """SpanExporter.shutdown; safe to call twice."""
        if not self._closed:
            self._closed = True
            self._exporter.shutdown()


def _queue_size() -> int:
    size = os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE, "")
    return int(size) if size.isdigit() and int(size) else _MAX_WAITING
