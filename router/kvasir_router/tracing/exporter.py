"""Sends spans to a collector: OTLP/HTTP with JSON, in a thread, in batches.

https://opentelemetry.io/docs/specs/otlp/#otlphttp. Written here and not taken from the SDK, whose
span costs more than the rest of a request's way through the router.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import structlog

from kvasir_router.tracing.span import Span

_BATCH = 512
_MAX_WAITING = 8192
_SECONDS = 1.0
_TIMEOUT = 5.0
_SERVER_KIND = 2
_ERROR = 2

_log = structlog.get_logger("kvasir_router.tracing")


class SpanExporter:
    """Takes ended spans. When the collector does not keep up or does not answer, spans are dropped
    and `dropped` is called with their number; requests never wait."""

    def __init__(self, endpoint: str, dropped: Callable[[int], None]) -> None:
        """`endpoint` is the collector's base URL, as in OTEL_EXPORTER_OTLP_ENDPOINT."""
        self._url = endpoint.rstrip("/") + "/v1/traces"
        self._dropped = dropped
        self._spans: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

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
        if self._spans.qsize() >= _MAX_WAITING:
            self._dropped(1)
            return
        events = [{"name": "first_byte", "timeUnixNano": str(first_byte)}] if first_byte else []
        self._spans.put(
            {
                "traceId": span.trace_id,
                "spanId": span.span_id,
                "parentSpanId": span.parent_id,
                "name": name,
                "kind": _SERVER_KIND,
                "startTimeUnixNano": str(span.started),
                "endTimeUnixNano": str(ended),
                "attributes": _attributes(attributes),
                "events": events,
                "status": {"code": _ERROR} if failed else {},
            }
        )

    def close(self, timeout: float = 2.0) -> None:
        """Send what waits, within `timeout` seconds."""
        self._stopping.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        import httpx  # only with tracing: it takes as long to import as the rest

        with httpx.Client(timeout=_TIMEOUT) as client:

            def send(body: bytes) -> None:
                headers = {"content-type": "application/json"}
                client.post(self._url, content=body, headers=headers).raise_for_status()

            stopping = False
            while not stopping:
                stopping = self._stopping.wait(_SECONDS)
                for batch in self._batches():
                    try:
                        send(_encode(batch))
                    except httpx.HTTPError as error:
                        self._failed(len(batch), error)
                    else:
                        self._failing = False

    def _batches(self) -> Iterator[list[dict[str, Any]]]:
        """What waits now."""
        left = self._spans.qsize()
        while left:
            size = min(left, _BATCH)
            left -= size
            yield [self._spans.get_nowait() for _ in range(size)]

    def _failed(self, count: int, error: Exception) -> None:
        self._dropped(count)
        if not self._failing:
            self._failing = True
            _log.warning("spans are dropped", url=self._url, error=repr(error))


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {
            "key": key,
            # 64-bit numbers are strings in JSON encodings of protocol buffers
            "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
        }
        for key, value in values.items()
        if value != ""
    ]


def _encode(spans: list[dict[str, Any]]) -> bytes:
    return msgspec.json.encode(
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": _attributes({"service.name": "kvasir-router"})},
                    "scopeSpans": [{"scope": {"name": "kvasir_router"}, "spans": spans}],
                }
            ]
        }
    )
