"""Bytes that replicas get of one request."""

from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.proxy.attempts.attempt import UpstreamRequest
from kvasir_router.proxy.migration import after_handover, continuation
from kvasir_router.proxy.transcript import Transcript
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import ask_for_usage


class OutgoingRequest:
    """Head and body for each replica that is asked; the body is the client's until a replica has
    begun with the answer that another one is to go on with."""

    def __init__(self, query: Query, fleet_secrets: FleetSecrets) -> None:
        self._query = query
        self._fleet_secrets = fleet_secrets
        self._body = query.request.body

    def rendered(self, attempt: UpstreamRequest) -> tuple[bytes, bytes]:
        """Return the request's head and body for the attempt's replica."""
        request, body = self._query.request, self._body
        has_usage = request.endpoint.usage == "completion"
        if self._query.streams and not attempt.contract and has_usage:
            asking = ask_for_usage(body, self._query.envelope.stream_options, request.outline)
            if asking is not None:
                body, attempt.asks_for_usage = asking, True
        head = (
            b"POST %b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\nX-Request-Id: %b\r\n%b\r\n"
        ) % (
            request.target,
            attempt.replica.authority,
            b"".join(request.lines),
            len(body),
            request.request_id,
            self._fleet_secrets.lines if attempt.contract else b"",
        )
        return head, body

    def go_on_after(self, transcript: Transcript | None) -> None:
        """Ask for the rest of a stream. Raises ObstacleError."""
        self._body = continuation(self._query, transcript)

    def go_on_from(self, handover: bytes) -> None:
        """Ask for the rest of a unary answer, by the body with which a replica handed it over."""
        self._body = after_handover(self._query, handover)

    def release(self) -> None:
        """Free the body: nothing is sent any more."""
        self._body = b""
