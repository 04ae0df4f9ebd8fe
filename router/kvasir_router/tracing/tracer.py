"""The router's tracing: a span when a request is routed, sent when it is over."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvasir_router.tracing.span import Span, begin_span

if TYPE_CHECKING:
    from kvasir_router.proxy.relay import Relay

_MAX_NAME = 64
_BILLION = 1_000_000_000


class Tracer:
    """Spans of the requests that are being relayed."""

    def __init__(self, endpoint: str, ratio: float, dropped: Callable[[int], None]) -> None:
        # Imported here: a router without tracing does without the SDK
        from kvasir_router.tracing.exporter import Spans

        self._ended = Spans(endpoint, dropped)
        self._ratio = ratio
        self._spans: dict[Relay, Span] = {}

    def began(self, relay: "Relay") -> None:
        """Give it a span, if it is sampled; the header that goes on to a replica names it."""
        span = begin_span(relay.request, self._ratio)
        if span is not None:
            self._spans[relay] = span

    def ended(self, relay: "Relay") -> str:
        """The trace's id, for the log; empty when the request has no span."""
        span = self._spans.pop(relay, None)
        if span is None:
            return ""
        ticket, usage = relay.ticket, relay.usage
        attributes: dict[str, str | int] = {
            "http.request.method": "POST",
            "url.path": relay.request.path,
            "http.response.status_code": relay.status,
            "gen_ai.request.model": relay.model.name,
            "kvasir.replica": relay.replica_id,
            "kvasir.tenant": ticket.tenant,
            "kvasir.request_id": relay.request.request_id.decode(),
        }
        if usage is not None:
            attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
        first_byte = relay.first_byte_at - relay.received if relay.first_byte_at else 0.0
        self._ended.end(
            span,
            f"POST {relay.request.path[:_MAX_NAME]}",
            time.time_ns(),
            attributes,
            failed=relay.status >= 500,
            first_byte=span.started + int(first_byte * _BILLION) if first_byte else 0,
        )
        return f"{span.trace_id:032x}"

    def close(self) -> None:
        """Send what waits."""
        self._ended.close()
