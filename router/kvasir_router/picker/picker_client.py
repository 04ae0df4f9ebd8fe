"""A gateway's request as the router's own gateway sees it: a client that carries bytes itself."""

import asyncio
import math
from collections.abc import Collection, Iterable, Sequence

from kvasir_router.admission.ticket import Ticket
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Replica
from kvasir_router.picker.gateway_address import client_of
from kvasir_router.picker.pick import Pick, PickClient
from kvasir_router.picker.picker_output import PickerOutput
from kvasir_router.picker.pool import Pool, Reach
from kvasir_router.proxy.client.deadlines import BodyDeadline
from kvasir_router.proxy.client.head_refusal import HeadRefusedError
from kvasir_router.proxy.failures import failure_responses
from kvasir_router.proxy.fallbacks import Fallbacks
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.proxy.relay_services import RelayServices
from kvasir_router.telemetry.model_metrics import ModelMetrics
from kvasir_router.wire import responses
from kvasir_router.wire.http_request import Request, RequestError
from kvasir_router.wire.query import Query
from kvasir_router.wire.request_parser import RequestParser
from kvasir_router.wire.usage import Usage

_NOT_SENT_ON = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"te", b"connection", b"expect"}
)
"""Headers of the hop before the gateway; the body is framed anew."""
_UNSAFE = (b"\r", b"\n", b"\0")


class PickerClient(PickClient):
    """One HTTP request of a gateway: it comes in parts, and once.

    Its header is written out as HTTP/1.1 and goes through the parser of all clients, so the same
    rules and limits hold. Like a connection it is registered from `opened` to `left`, by which it
    has deadlines, is bounded in number, and is waited for when the router drains.
    """

    sees_answers = False

    def __init__(
        self, gateway: Gateway, pool: Pool, output: PickerOutput, gateway_address: str = ""
    ) -> None:
        self._gateway = gateway
        self.address = ""  # of no connection here: a gateway may send any number of requests
        self._gateway_address = gateway_address
        self._client_address = ""
        self._pool = pool
        self._output = output
        self._loop = asyncio.get_running_loop()
        self._timeouts = gateway.settings.timeouts
        self._parser = RequestParser(
            gateway.settings.limits, gateway.bodies, self._arrived, _no_continue, self._check_head
        )
        self._body_deadline = BodyDeadline(self._timeouts, self._parser)
        self._subset: Collection[str] | None = None
        self._request: Request | None = None
        self._is_whole = False
        self._held = 0
        """Bytes of its whole body that count as held."""
        self._pick: Pick | None = None
        self._over = False
        """True when nothing more of it is of interest."""
        self.deadline = self._loop.time() + self._timeouts.header

    @property
    def stopping(self) -> bool:
        """Client.stopping."""
        return self._gateway.stopping

    @property
    def gone(self) -> bool:
        """GatewayClient.gone."""
        return self._over

    # From the gateway's stream

    def opened(self) -> None:
        """Begin; called once."""
        refusal = self._gateway.clients.connected(self)
        if refusal is not None:
            self._tell(refusal, None)

    def head(self, headers: Sequence[tuple[bytes, bytes]], *, last: bool, source: str = "") -> None:
        """Take the header, with HTTP/2's pseudo-headers; `last`: no body follows; `source`: address
        that the gateway got the request from, if it says."""
        proxies = self._gateway.clients.proxies
        try:
            self._client_address = client_of(proxies, source, self._gateway_address, headers)
            data = _head_of(headers, last=last)
        except RequestError as refusal:
            self._refuse(refusal)
            return
        self._feed(data)

    def body(self, data: bytes, *, last: bool) -> None:
        """Take a part of the body."""
        part = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        self._feed(part + (b"0\r\n\r\n" if last else b""))

    def offers(self, subset: Collection[str] | None) -> None:
        """Take the endpoints that the gateway can send it to; None = the pool's."""
        self._subset = subset

    def answer_began(self, status: int, served: str = "") -> None:
        """The head of an answer has come by, of the endpoint `served` if the gateway says."""
        if self._pick is not None:
            self._pick.answer_began(status, served)

    def answer_is_over(self, usage: Usage | None, size: int) -> None:
        """All of it has come by."""
        if self._pick is not None:
            self._pick.answer_is_over(usage, size)
        self._close()

    def left(self) -> None:
        """The stream is at its end, or broken; called once, last, whatever came before."""
        pick, self._pick = self._pick, None
        if pick is not None:
            pick.gone()
        self._close()
        self._gateway.clients.disconnected(self)

    # For those who answer

    def carry(
        self,
        services: RelayServices,
        query: Query,
        model: Model,
        metrics: ModelMetrics,
        ticket: Ticket,
        fallbacks: Fallbacks | None,
        received: float,
    ) -> None:
        """GatewayClient.carry."""
        self._pick = pick = Pick(services, self, query, model, metrics, ticket, fallbacks, received)
        pick.open()

    def reach(self, model: Model) -> Reach:
        """PickClient.reach."""
        return Reach(model, self._pool, self._subset)

    @property
    def endpoints(self) -> int:
        """PickClient.endpoints."""
        return self._gateway.settings.picker.endpoints

    def picked(self, replicas: Sequence[Replica], query: Query, model: Model) -> None:
        """PickClient.picked."""
        self._output.told_endpoints(replicas, query, model.name)
        self._give_back()

    def waits(self, model: Model) -> None:
        """PickClient.waits."""
        waiting = self._gateway.settings.waiting
        hold = waiting.hold if model.spec.hold is None else model.spec.hold
        self._output.told_wait(max(waiting.timeout, hold))

    def answer(self, request: Request, answer: responses.Answer) -> None:
        """Client.answer."""
        self._pick = None
        self._tell(responses.in_form_of(request.endpoint, answer), request)

    def abort(self, *, reset: bool = False) -> None:
        """Client.abort."""
        self._close()
        self._output.told_end()

    # For the gateway

    def defect(self, request: Request) -> None:
        """GatewayClient.defect."""
        if self._pick is not None:
            self._pick.fail(failure_responses.defect())
        elif not self._over:
            self._gateway.answer(self, request, failure_responses.defect())

    def grown(self, size: int) -> None:
        """GatewayClient.grown."""
        self._parser.hold_more(size)
        self._held += size

    def expire(self) -> None:
        """The request did not come in time."""
        self.deadline = math.inf
        if self._request is None and not self._over:
            self._refuse(RequestError(408, "The request did not arrive in time.", "timeout"))

    def stop(self) -> None:
        """RegisteredClient.stop."""
        if self._pick is not None:
            self._pick.cut()
        self.abort()

    # Arrival

    def _feed(self, data: bytes) -> None:
        if self._over or self._is_whole:
            return
        try:
            self._parser.feed(data)
        except RequestError as refusal:
            self._refuse(refusal)
            return
        request = self._request
        if request is None:
            self._await_more()
            return
        self._is_whole = True
        self.deadline = math.inf
        self._held = len(request.body)
        self._gateway.handle(self, request)

    def _await_more(self) -> None:
        now = self._loop.time()
        if self._parser.in_body:
            self.deadline = self._body_deadline.at(now)

    def _arrived(self, request: Request) -> None:
        request.client = self._client_address
        self._request = request

    def _check_head(self, request: Request) -> None:
        request.client = self._client_address
        try:
            self._gateway.check_head(request)
        except responses.RefusalError as refusal:
            raise HeadRefusedError(request, refusal.answer) from None

    def _refuse(self, refusal: RequestError) -> None:
        if isinstance(refusal, HeadRefusedError):
            self._gateway.answer(self, refusal.request, refusal.answer)
            return
        self._gateway.refused(refusal, self._client_address)
        answer = responses.error(
            refusal.status, refusal.message, refusal.code, retry_after=refusal.retry_after
        )
        self._tell(responses.in_form_of(self._parser.endpoint, answer), None)

    # Ends

    def _tell(self, answer: responses.Answer, request: Request | None) -> None:
        if not self._over:
            self._close()
            self._output.told_answer(answer, request)

    def _close(self) -> None:
        self._over = True
        self.deadline = math.inf
        if self._request is None:
            self._parser.abandon()
        self._give_back()

    def _give_back(self) -> None:
        held, self._held = self._held, 0
        self._parser.give_back(held)


def _no_continue() -> None:
    """Gateways send `100 Continue` themselves."""


def _head_of(headers: Iterable[tuple[bytes, bytes]], *, last: bool) -> bytes:
    """Return the header as HTTP/1.1 has it. Raises RequestError."""
    pseudo = dict.fromkeys((b":method", b":path", b":authority"), b"")
    lines = []
    for name, value in headers:
        if any(sign in name or sign in value for sign in _UNSAFE):
            raise RequestError(400, "A header of the request holds a line end or a NUL.")
        if name.startswith(b":"):
            pseudo[name] = value
        elif name.lower() not in _NOT_SENT_ON:
            lines.append(b"%b: %b\r\n" % (name, value))
    if any(b" " in value for value in pseudo.values()):
        raise RequestError(400, "The request target must be a path that starts with `/`.")
    method, path, host = pseudo[b":method"], pseudo[b":path"], pseudo[b":authority"]
    framing = b"" if last else b"Transfer-Encoding: chunked\r\n"
    return b"%b %b HTTP/1.1\r\nHost: %b\r\n%b%b\r\n" % (
        method,
        path,
        host,
        b"".join(lines),
        framing,
    )
