"""One request's way to a replica and back, with retries before the first byte."""

import asyncio
import time
from enum import Enum
from typing import TYPE_CHECKING

from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.policy.base import Choice
from kvasir_router.proxy import answers
from kvasir_router.proxy.sse import EventCutter
from kvasir_router.proxy.upstream import ResponseHead, UpstreamConnection
from kvasir_router.query import Query

if TYPE_CHECKING:
    from kvasir_router.proxy.gateway import Gateway
    from kvasir_router.proxy.protocol import ClientConnection

MAX_ATTEMPTS = 3

CLIENT_CLOSED = 499
"""The status in log and metrics when the client left first (nginx's)."""

# Another replica may have room, or be serving already.
_ELSEWHERE = frozenset({429, 503})
# What a broken engine says; 500 is also counted by the breaker, but never retried.
_FAULTS = frozenset({500, 502, 504})

_LAST_CHUNK = b"0\r\n\r\n"


class Framing(Enum):
    """How the end of the answer is told to the client."""

    LENGTH = 1
    CHUNKED = 2
    CLOSE = 3


class Relay:
    """Chooses a replica, sends it the request, and passes its answer to the client.

    A replica counts the request from its choice until `_leave`, which every way out goes through:
    the end of the answer, a failure, a retry, and the client's departure. Nothing here awaits,
    except for opening a connection when none is idle.
    """

    __slots__ = (
        "_choice",
        "_client",
        "_connecting",
        "_connection",
        "_credit",
        "_events",
        "_framing",
        "_gateway",
        "_head",
        "_may_go_elsewhere",
        "_replica",
        "_tried",
        "model",
        "query",
        "received",
        "replica_id",
        "request",
        "sent_bytes",
        "started_at",
        "status",
    )

    def __init__(
        self, gateway: "Gateway", client: "ClientConnection", query: Query, model: Model
    ) -> None:
        self._gateway = gateway
        self._client = client
        self.query = query
        self.request = query.request
        self.model = model
        self.status = 0
        self.replica_id = ""
        self.sent_bytes = 0
        self.received = time.monotonic()
        self.started_at = 0.0
        self._replica: Replica | None = None
        self._choice: Choice | None = None
        self._credit = 0
        self._connection: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._tried: list[Replica] = []
        self._may_go_elsewhere = True
        self._head = b""
        self._framing = Framing.LENGTH
        self._events: EventCutter | None = None

    def start(self) -> None:
        if not self._try_next():
            self._refuse()

    def pause(self) -> None:
        """The client does not keep up."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def client_gone(self) -> None:
        """Stop the replica's work on the request at once."""
        connection = self._leave()
        if connection is not None:
            connection.abort()
        self.status = CLIENT_CLOSED
        self._gateway.ended(self)

    def cut(self) -> None:
        """The router stops and cannot wait for the rest of the answer."""
        connection = self._leave()
        if connection is not None:
            connection.abort()
        if self.status:
            self._end_cut("The router is stopping.", "router_stopping")
        else:
            self._answer(answers.error(503, "The router is stopping.", "router_stopping"))

    # Listener

    def response_started(self, head: ResponseHead) -> None:
        status = head.status
        if status in _ELSEWHERE and self._may_go_elsewhere and self._go_elsewhere(status):
            return
        if self._replica is not None:
            if status in _FAULTS:
                self._replica.failed(str(status))
            elif status == 503:
                self._replica.probe_now.set()
        self.status = status
        self.started_at = time.monotonic()
        self._return_credit()
        self._head = self._client_head(head)

    def response_data(self, data: bytes, last: bool) -> None:
        head = self._head
        if head:
            self._head = b""
        if self._framing is Framing.CHUNKED:
            if self._events is not None:
                data = self._events.whole(data, last)
            self.sent_bytes += len(data)
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if last:
                data += _LAST_CHUNK
        else:
            self.sent_bytes += len(data)
        if head:
            data = head + data
        if data:
            self._client.write(data)
        if last:
            self._finished()

    def response_broken(self, reason: str) -> None:
        replica, connection = self._replica, self._connection
        if replica is None or connection is None:
            return
        if not self.status and connection.reused:
            # The replica closed a kept connection as the request came: no fault, try a fresh one.
            self._connection = None
            self._connect(replica)
            return
        replica.failed(reason, Health.SUSPECT)
        self._leave()
        if not self.status:
            self._retry(reason)
            return
        self._gateway.metrics.model(self.model.name).broken += 1
        self._end_cut(
            f"Replica {replica.id} of model {self.model.name} broke off this answer.",
            "replica_failed",
        )

    # Attempts

    def _try_next(self) -> bool:
        choice = self.model.choose(self.query, self._tried)
        if choice is None:
            return False
        replica = choice.replica
        self._tried.append(replica)
        self._choice = choice
        self._replica = replica
        self.replica_id = replica.id
        replica.acquire()
        self._credit = choice.new_tokens
        replica.load.give(self._credit)
        self.model.policy.sent(self.query, choice)
        connection = replica.pool.take_idle()
        if connection is not None:
            self._send(replica, connection)
        else:
            self._connect(replica)
        return True

    def _connect(self, replica: Replica) -> None:
        self._connecting = asyncio.create_task(self._open(replica))

    async def _open(self, replica: Replica) -> None:
        try:
            connection = await replica.pool.connect()
            self._connecting = None
            self._send(replica, connection)
        except ConnectionRefusedError:
            self._failed_to_connect(replica, "refused", Health.DOWN)
        except TimeoutError:
            self._failed_to_connect(replica, "connect_timeout", Health.SUSPECT)
        except OSError:
            self._failed_to_connect(replica, "connect_error", Health.SUSPECT)

    def _failed_to_connect(self, replica: Replica, reason: str, health: Health) -> None:
        self._connecting = None
        replica.failed(reason, health)
        self._leave()
        self._retry(reason)

    def _retry(self, reason: str) -> None:
        if len(self._tried) < MAX_ATTEMPTS and self._try_next():
            self._gateway.metrics.model(self.model.name).retries[reason] += 1
        else:
            self._refuse()

    def _go_elsewhere(self, status: int) -> bool:
        """Once, when there is another replica, take the request away from one that is full or not
        serving."""
        self._may_go_elsewhere = False
        other = self.model.choose(self.query, self._tried)
        if other is None or len(self._tried) >= MAX_ATTEMPTS:
            return False
        if self._replica is not None and status == 503:
            self._replica.probe_now.set()
        connection = self._leave()
        if connection is not None:
            connection.discard()
        self._retry(str(status))
        return True

    def _send(self, replica: Replica, connection: UpstreamConnection) -> None:
        self._connection = connection
        request = self.request
        head = (
            b"POST %b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\nX-Request-Id: %b\r\n%b\r\n"
        ) % (
            request.target,
            replica.authority,
            b"".join(request.lines),
            len(request.body),
            request.request_id,
            self._gateway.fleet_lines,
        )
        connection.send(self, head, request.body)

    # Answers

    def _client_head(self, head: ResponseHead) -> bytes:
        request = self.request
        if head.content_length is not None:
            self._framing = Framing.LENGTH
            end = b"Content-Length: %d\r\n" % head.content_length
            if head.status in (204, 304):
                end = b""
        elif request.http10:
            self._framing = Framing.CLOSE
            end = b""
        else:
            self._framing = Framing.CHUNKED
            end = b"Transfer-Encoding: chunked\r\n"
            if head.content_type.startswith(b"text/event-stream"):
                self._events = EventCutter()
        if self._gateway.stopping or self._framing is Framing.CLOSE:
            request.keep_alive = False
        return b"%b%b%bX-Request-Id: %b\r\n%b%b\r\n" % (
            answers.status_line(head.status),
            b"".join(head.lines),
            end,
            request.request_id,
            request.answer_lines,
            b"" if request.keep_alive else b"Connection: close\r\n",
        )

    def _finished(self) -> None:
        if self._replica is not None and self.status not in _FAULTS:
            self._replica.succeeded()
        if self._choice is not None:
            self.model.policy.ended(self.query, self._choice, None)
        self._leave()
        self._gateway.ended(self)
        self._client.finished(self.request.keep_alive)

    def _end_cut(self, message: str, code: str) -> None:
        """End an answer that has begun and cannot be completed: an event stream with an error
        event, anything else by closing the connection before its end."""
        if self._events is not None:
            event = answers.sse_error(message, code)
            head, self._head = self._head, b""
            self._client.write(b"%b%x\r\n%b\r\n%b" % (head, len(event), event, _LAST_CHUNK))
            self._gateway.ended(self)
            self._client.finished(self.request.keep_alive)
        else:
            self._gateway.ended(self)
            self._client.abort()

    def _refuse(self) -> None:
        model = self.model
        if model.saturated:
            self._answer(
                answers.error(
                    429,
                    f"All replicas of model `{model.name}` have all the requests they may.",
                    "overloaded",
                    retry_after=1,
                )
            )
        else:
            tried = f" ({len(self._tried)} failed just now)" if self._tried else ""
            self._answer(
                answers.error(
                    503,
                    f"Model `{model.name}` has no ready replica{tried}; try again soon.",
                    "model_not_ready",
                    retry_after=1,
                )
            )

    def _answer(self, answer: answers.Answer) -> None:
        self.status = answer.status
        self.sent_bytes = len(answer.body)
        self.started_at = time.monotonic()
        self._gateway.ended(self)
        self._client.answer(self.request, answer)

    def _return_credit(self) -> None:
        """Its prompt is computed, or never will be here."""
        if self._replica is not None and self._credit:
            self._replica.load.take_back(self._credit)
        self._credit = 0

    def _leave(self) -> UpstreamConnection | None:
        """Give the request back to nobody: the one place where a replica's count goes down."""
        self._return_credit()
        replica, self._replica = self._replica, None
        connection, self._connection = self._connection, None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if replica is not None:
            replica.release()
        return connection
