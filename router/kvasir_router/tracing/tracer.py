"""The router's tracing: a span when a request is routed, sent when it is over."""

import time
from collections.abc import Callable

from kvasir_router.admission.outcome import Outcome
from kvasir_router.tracing.span import Span, begin_span
from kvasir_router.wire.http_request import Request

_MAX_NAME = 64
_BILLION = 1_000_000_000


class Tracer:
    """Spans of the requests that are being relayed."""

    def __init__(self, endpoint: str, ratio: float, dropped: Callable[[int], None]) -> None:
        # Imported here: a router without tracing does without the SDK
        from kvasir_router.tracing.exporter import Spans

        self._ended = Spans(endpoint, dropped)
        self._ratio = ratio
        self._spans: dict[Request, Span] = {}

    def began(self, request: Request) -> None:
        """Give the request a span, if it is sampled, and name it in the header for a replica."""
        span = begin_span(request, self._ratio)
        if span is not None:
            self._spans[request] = span

    def ended(self, outcome: Outcome) -> str:
        """Send the request's span; return the trace's id, empty when there is no span."""
        request, usage = outcome.query.request, outcome.usage
        span = self._spans.pop(request, None)
        if span is None:
            return ""
        attributes: dict[str, str | int] = {
            "http.request.method": "POST",
            "url.path": request.path,
            "http.response.status_code": outcome.status,
            "gen_ai.request.model": outcome.model.name,
            "kvasir.replica": outcome.replica_id,
            "kvasir.tenant": outcome.ticket.tenant,
            "kvasir.request_id": request.request_id.decode(),
        }
        if usage is not None:
            attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
        first_byte = outcome.first_byte
        self._ended.end(
            span,
            f"POST {request.path[:_MAX_NAME]}",
            time.time_ns(),
            attributes,
            failed=outcome.status >= 500,
            first_byte=span.started + int(first_byte * _BILLION) if first_byte else 0,
        )
        return f"{span.trace_id:032x}"

    def close(self) -> None:
        """Send what waits."""
        self._ended.close()
