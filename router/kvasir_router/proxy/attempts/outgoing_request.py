"""Bytes that replicas get of one request."""

from kvasir_router.discovery.specs import Upstream
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.proxy.attempts.attempt import UpstreamRequest
from kvasir_router.proxy.attempts.model_field import named_for
from kvasir_router.proxy.attempts.upstream_rendering import body_of, head_lines, target_of
from kvasir_router.proxy.migration import after_handover, continuation
from kvasir_router.proxy.transcript import Transcript
from kvasir_router.wire.long_bodies.body_scan import Outline
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import ask_for_usage


class OutgoingRequest:
    """Head and body for each replica that is asked; the body is the client's until a replica has
    begun with the answer that another one is to go on with."""

    def __init__(self, query: Query, fleet_secrets: FleetSecrets, model: str) -> None:
        """`model` is the name of the query's model."""
        self._model = model
        self._query = query
        self._fleet_secrets = fleet_secrets
        self._body = query.request.body

    def rendered(self, attempt: UpstreamRequest) -> tuple[bytes, bytes]:
        """Return the request's head and body for the attempt's replica."""
        upstream = attempt.replica.spec.upstream
        if upstream is not None:
            return self._foreign(attempt, upstream)
        request, engine = self._query.request, attempt.replica.spec.engine
        body, outline = named_for(engine, self._query, self._body, self._model)
        if not attempt.contract:
            body = self._asking(attempt, body, outline)
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

    def _foreign(self, attempt: UpstreamRequest, upstream: Upstream) -> tuple[bytes, bytes]:
        """Return what a server that is not of the fleet gets."""
        request = self._query.request
        body, outline = body_of(self._query, upstream, attempt.replica.spec.engine)
        body = self._asking(attempt, body, outline)
        head = (
            b"POST %b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\nX-Request-Id: %b\r\n\r\n"
        ) % (
            target_of(request, upstream),
            attempt.replica.spec.host_header,
            head_lines(request, upstream),
            len(body),
            request.request_id,
        )
        return head, body

    def _asking(self, attempt: UpstreamRequest, body: bytes, outline: Outline | None) -> bytes:
        """Return the body that asks for usage too, if it does not and the answer may tell."""
        query = self._query
        if query.streams and query.request.endpoint.usage == "completion":
            asking = ask_for_usage(body, query.envelope.stream_options, outline)
            if asking is not None:
                attempt.asks_for_usage = True
                return asking
        return body

    def go_on_after(self, transcript: Transcript | None) -> None:
        """Ask for the rest of a stream. Raises ObstacleError."""
        self._body = continuation(self._query, transcript)

    def go_on_from(self, handover: bytes) -> None:
        """Ask for the rest of a unary answer, by the body with which a replica handed it over."""
        self._body = after_handover(self._query, handover)

    def release(self) -> None:
        """Free the body: nothing is sent any more."""
        self._body = b""
