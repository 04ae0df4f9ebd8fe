"""One client connection: requests in order, answers in order, bounded buffers, deadlines."""

import asyncio
import math
import socket
import struct
from collections.abc import Callable
from typing import cast

from kvasir_router.proxy.client.arrival import Arrival
from kvasir_router.proxy.client.deadlines import LINGER_SECONDS, Linger
from kvasir_router.proxy.client.gateway_client import GatewayClient
from kvasir_router.proxy.client.head_refusal import HeadRefusedError
from kvasir_router.proxy.client.read_turn import TURN_BYTES
from kvasir_router.proxy.failures import failure_responses
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.proxy.relay import Relay
from kvasir_router.wire import responses
from kvasir_router.wire.forwarding.client_address import BAD_FORWARDED, peer_of
from kvasir_router.wire.http_request import Request, RequestError

# Bytes a client may be behind before its replica is paused, and has to be to go on.
_WRITE_HIGH, _WRITE_LOW = 256 * 1024, 64 * 1024

# Requests answered at once before the other connections have their turn.
_TURN_ANSWERS = 16

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing waits no time for what is not sent, and says so."""


class ClientConnection(GatewayClient):
    """Requests are answered one at a time. While one is in progress the connection is still read,
    because that is how a client's departure is noticed; a client that half-closes has left."""

    def __init__(self, gateway: Gateway, address: str = "") -> None:
        """`address`: the client's, where a PROXY header or an accept has told it."""
        self._gateway = gateway
        self.address = address
        self._is_proxy = False
        """True when X-Forwarded-For says whose a request is."""
        self._timeouts = gateway.settings.timeouts
        self._loop = asyncio.get_running_loop()
        self._arrival = arrival = Arrival(
            gateway.settings.limits,
            self._timeouts,
            gateway.bodies,
            self._continue,
            self._check_head,
        )
        self._queue = arrival.queue
        self._parser = arrival.parser
        self._turn = arrival.turn
        self._answering = 0
        """Bytes of the body of the request in progress."""
        self._relay: Relay | None = None
        self._busy = False
        self._starting = False
        self._resting = False
        self._owes_continue = False
        self._writing = True
        self._closing = False
        self._linger = Linger()
        self._idle_since = self._loop.time()
        self.deadline = 0.0
        """Loop time at which `expire` is called."""

    @property
    def idle(self) -> bool:
        """Between requests, with nothing of the next one received."""
        arrival = self._arrival
        return not (self._busy or arrival.receiving or self._closing or arrival.waits)

    @property
    def gone(self) -> bool:
        """GatewayClient.gone."""
        return self._closing

    @property
    def stopping(self) -> bool:
        """Client.stopping."""
        return self._gateway.stopping

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._arrival.opened(self._transport)
        self._transport.set_write_buffer_limits(_WRITE_HIGH, _WRITE_LOW)
        sock = transport.get_extra_info("socket")
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = self.address or peer_of(sock)
        self._is_proxy = self._gateway.clients.proxies.trusts(self.address)
        self.deadline = self._loop.time() + self._timeouts.header
        refusal = self._gateway.clients.connected(self)
        if refusal is not None:
            self._send_last(refusal)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            self._throw_away(len(data))
        elif len(data) <= TURN_BYTES:
            self._take(data)
        else:
            self._turn.add(data)
            self._take_turn()

    def eof_received(self) -> None:
        self._closing = True
        self._left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._left()
        self._drop_arrival()
        self._gateway.clients.disconnected(self)

    def pause_writing(self) -> None:
        self._writing = False
        self.deadline = self._loop.time() + self._timeouts.send
        if self._relay is not None:
            self._relay.pause()

    def resume_writing(self) -> None:
        self._writing = True
        if self._busy:
            self.deadline = math.inf
        elif not self._closing:
            self.deadline = self._loop.time() + self._timeouts.keep_alive
        if self._relay is not None:
            self._relay.resume()
        elif not self._busy:
            self._soon(self._next)

    # For those who answer

    def relay(self, relay: Relay) -> None:
        """Let `relay` answer the request in progress."""
        self._relay = relay
        relay.open()

    def write(self, data: bytes) -> None:
        """Client.write. Slow clients pause their relay, see `pause_writing`. Nothing is written
        between the loss of the connection and the news of it."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def answer(self, request: Request, answer: responses.Answer) -> None:
        """Client.answer."""
        keep_alive = request.keep_alive and not self._gateway.stopping
        head_only = request.method == b"HEAD"
        answer = responses.in_form_of(request.endpoint, answer)
        self.write(answer.encode(request.request_id, keep_alive, head_only, request.answer_lines))
        self.finished(keep_alive)

    def finished(self, keep_alive: bool) -> None:
        """Client.finished."""
        self._relay = None
        self._busy = False
        self._parser.give_back(self._answering)
        self._answering = 0
        if not keep_alive:
            self._close_gently()
            return
        self._idle_since = self._loop.time()
        if self._writing:
            self.deadline = self._idle_since + self._timeouts.keep_alive
        if self._queue or not self._arrival.reading:
            self._next()
        if self._owes_continue and not self._busy:
            self._owes_continue = False
            if self._parser.in_body:
                self.write(responses.CONTINUE)

    def abort(self, *, reset: bool = False) -> None:
        """Client.abort; `reset`: so that the client sees more than an end."""
        self._relay = None
        self._busy = False
        self._closing = True
        if reset and not self._transport.is_closing():
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    # For the gateway

    def defect(self, request: Request) -> None:
        """GatewayClient.defect."""
        if self._relay is not None:
            self._relay.fail(failure_responses.defect())
        elif self._busy and not self._closing:
            self._gateway.answer(self, request, failure_responses.defect())

    def grown(self, size: int) -> None:
        """GatewayClient.grown."""
        self._parser.hold_more(size)
        self._answering += size

    def expire(self) -> None:
        """End what has passed its deadline: nothing came, or nothing was read, for too long."""
        now = self._loop.time()
        unsent = self._transport.get_write_buffer_size()
        if self._closing and unsent and self._linger.unread(now):
            self.deadline = now + LINGER_SECONDS
        elif self._closing or not self._writing:
            self._left()
            self.abort(reset=unsent > 0)
        elif self._arrival.receiving and not self._busy:
            self._refuse(RequestError(408, "The request did not arrive in time.", "timeout"))
        elif self.idle:
            self._close_idle()
        else:
            self.deadline = math.inf

    def stop(self) -> None:
        """The router is about to exit: end what runs, and close."""
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.cut()
        if not self._closing:
            self._transport.close()

    def close_if_idle(self, seconds: float) -> None:
        """Close it if it has been idle for so long."""
        if self.idle and self._loop.time() >= self._idle_since + seconds:
            self._close_idle()

    # Requests

    def _continue(self) -> None:
        if self._busy or self._queue:
            self._owes_continue = True  # after the answers before it
        else:
            self._transport.write(responses.CONTINUE)

    def _check_head(self, request: Request) -> None:
        """Before a body is read. Raises RequestError."""
        request.client = self._client_of(request)
        try:
            self._gateway.check_head(request)
        except responses.RefusalError as refusal:
            raise HeadRefusedError(request, refusal.answer) from None

    def _take(self, data: bytes | memoryview) -> None:
        was_busy, arrival = self._busy, self._arrival
        arrival.take(data)
        if not was_busy:
            self._next()
        if (was_busy or self._queue) and not self._closing:
            arrival.hold_back(len(data))
        if arrival.receiving or self._parser.receiving:
            self._watch_arrival()

    def _take_turn(self) -> None:
        """Take a part of a large read, and the rest in turns to come."""
        turn = self._turn
        while not self._closing and (part := turn.next_part()):
            self._take(part)
        if self._closing:
            turn.drop()
        elif turn.is_over:
            self._arrival.pause()
            self._soon(self._begin_turn)
        else:
            self._arrival.resume()

    def _begin_turn(self) -> None:
        self._turn.begin()
        self._take_turn()

    def _next(self) -> None:
        """Answer requests until one takes its time. Not re-entered by answers given at once."""
        if self._starting or self._resting:
            return
        self._starting = True
        try:
            self._start_requests()
        finally:
            self._starting = False
        if not self._queue and not self._closing:
            self._arrival.none_waits()

    def _start_requests(self) -> None:
        turns = _TURN_ANSWERS
        while self._queue and self._writing and not self._busy and not self._closing:
            if not turns:
                self._resting = True
                self._soon(self._wake)
                return
            turns -= 1
            item = self._queue.popleft()
            if isinstance(item, RequestError):
                self._refuse(item)
                return
            if not item.client:
                try:
                    item.client = self._client_of(item)
                except RequestError as refusal:
                    self._refuse(refusal)
                    return
            self._busy = True
            self._answering = len(item.body)
            self.deadline = math.inf
            self._gateway.handle(self, item)

    def _client_of(self, request: Request) -> str:
        """Return whose request it is. Raises RequestError."""
        if not self._is_proxy:
            return self.address
        return self._gateway.clients.proxies.client_of(request.lines, self.address)

    def _wake(self) -> None:
        self._resting = False
        self._next()

    def _watch_arrival(self) -> None:
        """Give what is being received its deadline, unless an answer has it."""
        new = self._arrival.watch()
        if self._arrival.receiving and not (self._busy or self._closing):
            self.deadline = self._arrival.deadline(self._loop.time(), self.deadline, new)

    # Ends

    def _close_idle(self) -> None:
        """Unless something has come that the loop has not read yet, which would be lost."""
        if not self._arrival.has_unread():
            self._transport.close()

    def _left(self) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            self._busy = False
            relay.client_gone()

    def _soon(self, step: Callable[[], None]) -> None:
        self._loop.call_soon(self._run, step)

    def _run(self, step: Callable[[], None]) -> None:
        """Take a step. If it raises, the loop would go on and the client wait in vain."""
        try:
            step()
        except Exception as error:
            self._gateway.tasks.defect("connection", error)
            self._left()
            self.abort(reset=True)

    def _refuse(self, refusal: RequestError) -> None:
        if isinstance(refusal, HeadRefusedError):
            refusal.request.keep_alive = False
            self._gateway.answer(self, refusal.request, refusal.answer)
            return
        answer = responses.error(
            refusal.status, refusal.message, refusal.code, retry_after=refusal.retry_after
        )
        self._send_last(responses.in_form_of(self._parser.endpoint, answer))
        self._gateway.refused(refusal, self.address)
        if refusal.code == BAD_FORWARDED:
            self._gateway.metrics.proxy_headers_refused["forwarded_for"] += 1

    def _send_last(self, answer: responses.Answer) -> None:
        self._transport.write(answer.encode(b"", keep_alive=False))
        self._close_gently()

    def _close_gently(self) -> None:
        self._closing = True
        self._drop_arrival()
        if self._transport.is_closing():
            return
        self.deadline = self._linger.begin(self._loop.time(), self._timeouts.send)
        self._arrival.read_on()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()  # TLS says itself that nothing more comes

    def _drop_arrival(self) -> None:
        self._answering = 0
        self._arrival.drop()

    def _throw_away(self, size: int) -> None:
        self.deadline = self._linger.received(size, self._loop.time())
        if not self.deadline:
            self._transport.abort()
