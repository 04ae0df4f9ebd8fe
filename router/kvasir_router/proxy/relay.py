"""One request from a client: its answer, passed on from wherever it comes, and every end."""

import asyncio
import time
from typing import TYPE_CHECKING

from kvasir_router.admission.ticket import Ticket
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model, PolicyError
from kvasir_router.proxy import failure_responses
from kvasir_router.proxy.accounting import CLIENT_CLOSED
from kvasir_router.proxy.attempt import UpstreamRequest
from kvasir_router.proxy.attempts import Attempts
from kvasir_router.proxy.client_response import ClientAnswer, Framing, answer_head
from kvasir_router.proxy.event_stream import EventStream, waiting_head
from kvasir_router.proxy.failure import FAULTS, Failure
from kvasir_router.proxy.migration import Obstacle
from kvasir_router.proxy.transcript import Transcript
from kvasir_router.wire.engine_json import tells_of_error
from kvasir_router.wire.query import Query
from kvasir_router.wire.responses import Answer
from kvasir_router.wire.upstream import ResponseHead
from kvasir_router.wire.usage import Usage, decode_usage, usage_in_body

if TYPE_CHECKING:
    from kvasir_router.proxy.connection import ClientConnection
    from kvasir_router.proxy.gateway import Gateway


class Relay:
    """Between a client and the attempts at replicas. Every end goes through `_over`."""

    __slots__ = (
        "_attempts",
        "_deadline",
        "_hedge_timer",
        "_hedges",
        "_paused",
        "answer",
        "choice",
        "client",
        "ended_at",
        "first_byte_at",
        "gateway",
        "metrics",
        "model",
        "query",
        "received",
        "replica_id",
        "request",
        "sent_bytes",
        "status",
        "streams",
        "ticket",
        "usage",
    )

    def __init__(
        self,
        gateway: "Gateway",
        client: "ClientConnection",
        query: Query,
        model: Model,
        ticket: Ticket,
    ) -> None:
        self.gateway = gateway
        self.client = client
        self.query = query
        self.request = query.request
        self.streams = query.streams
        """Whether the client wants events."""
        self.model = model
        self.ticket = ticket
        self.received = time.monotonic()
        self.first_byte_at = 0.0
        self.ended_at = 0.0
        self.status = 0
        self.replica_id = ""
        """The last one that was asked."""
        self.sent_bytes = 0
        """Of the answer's body."""
        self.usage: Usage | None = None
        """At the end, if the engine told."""
        self.choice: Choice | None = None
        """The one that was answered; None when several replicas had a part in the answer."""
        self.answer: ClientAnswer | None = None
        """On its way to the client."""
        self.metrics = gateway.metrics.model(model.name)
        self._attempts = Attempts(self)
        self._paused = False
        self._deadline: asyncio.TimerHandle | None = None
        self._hedges = False
        self._hedge_timer: asyncio.TimerHandle | None = None
        model.budget.request(self.received)

    @property
    def is_blank(self) -> bool:
        """Whether the client has nothing of an answer yet."""
        return self.answer is None or self.answer.blank

    @property
    def transcript(self) -> Transcript | None:
        """What the client of a stream has, if it is kept."""
        return self.answer.transcript if isinstance(self.answer, EventStream) else None

    # From the client's connection

    def open(self) -> None:
        """Begin; called once."""
        if self.gateway.poison.holds(self.request.body):
            self.metrics.poison["refused"] += 1
            self.fail(failure_responses.poison())
            return
        failover = self.gateway.settings.failover
        seconds = self.request.timeout or failover.request_timeout
        if seconds:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(seconds, self._expire, seconds)
        if failover.hedging and self.request.endpoint.hedged and not self.streams:
            self._hedges = True
            seconds = self.model.hedge_delay.seconds
            if seconds is not None:
                loop = asyncio.get_running_loop()
                self._hedge_timer = loop.call_later(seconds, self._attempts.send_hedge)
        if self.model.spec.tokenizer is None or not self.gateway.tokenizing.prepare(
            self.query, self.model, self._enter
        ):
            self._enter()

    def pause(self) -> None:
        """The client does not keep up."""
        self._paused = True
        self._attempts.pause()

    def resume(self) -> None:
        """It does again."""
        self._paused = False
        self._attempts.resume()

    def client_gone(self) -> None:
        """Stop the replica's work on the request at once."""
        self.status = CLIENT_CLOSED
        self._over()

    def cut(self) -> None:
        """The router stops and cannot wait for the rest of the answer."""
        self.fail(failure_responses.stopping())

    # From the queue

    def start(self) -> None:
        """Look for a replica."""
        if not self._attempts.start():
            self.wait()

    @property
    def moving(self) -> bool:
        """Whether it waits to go on with a stream that has begun."""
        return self._attempts.moving

    @property
    def preferred_has_room(self) -> bool:
        """Return whether the preferred replica has a free slot."""
        try:
            return self.model.prefers_room(self.query)
        except PolicyError:
            return True  # its turn: `start` will end it

    def refuse(self, answer: Answer) -> None:
        """Refuse the request: its queue timeout has passed."""
        if self.is_blank:
            self.fail(answer)
        else:
            self.lose(Obstacle.REPLICA)

    def heartbeat(self) -> None:
        """Tell the client of a stream that it waits on."""
        if self.answer is None:
            self.status = 200
            self.first_byte_at = time.monotonic()
            self.answer = EventStream(self, waiting_head())
        if isinstance(self.answer, EventStream):
            self.answer.beat()

    # From the attempts

    def wait(self) -> None:
        """No replica may take the request now, or its policy cannot say which."""
        if self._attempts.policy_failed:
            self.fail(failure_responses.policy_failed(self.model))
            return
        self._attempts.forget_tried()
        self.gateway.line.join(self)

    def pass_on(self, attempt: UpstreamRequest, head: ResponseHead) -> None:
        """An answer follows, as it comes."""
        if self.answer is None:
            self._begin(attempt, head)
        elif isinstance(self.answer, EventStream) and head.status == 200 and head.has_events:
            self._adopt(attempt, self.answer)
        else:
            self.lose(Obstacle.REFUSED)

    def pass_whole(self, attempt: UpstreamRequest, head: ResponseHead, body: bytes) -> None:
        """A whole answer."""
        if self.answer is None:
            self._note(attempt, head)
            self.sent_bytes = len(body)
            if head.usage:
                self.usage = decode_usage(head.usage)
            elif head.status == 200:
                self.usage = usage_in_body(body)
            self.client.write(answer_head(self, head, Framing.LENGTH) + body)
            self.answer_ended()
        elif self.answer.blank and head.status != 200 and tells_of_error(body):
            self.fail(Answer(head.status, b" ".join(body.splitlines())))  # for an event
        else:
            self.lose(Obstacle.REFUSED)

    def withdraw(self) -> None:
        """The replica failed. An answer of which the client has nothing has never begun: what comes
        instead may be of another kind."""
        answer = self.answer
        if answer is not None and not answer.begun:
            answer.close()
            self.answer = self.choice = None

    def finish_stream(self) -> None:
        """The replica broke off when nothing was missing but the last word."""
        if isinstance(self.answer, EventStream):
            self.metrics.migrations["completed"] += 1
            self.answer.finish()

    def lose(self, obstacle: Obstacle) -> None:
        """An answer that has begun cannot be resumed."""
        self.metrics.migrations[obstacle.value] += 1
        self.metrics.broken += 1
        self.fail(failure_responses.broken_off(self.model, self.replica_id))

    def end_as_poison(self) -> None:
        """Two engines ended with the request in flight."""
        self.gateway.poison.add(self.request.body)
        self.metrics.poison["ended"] += 1
        self.fail(failure_responses.poison())

    def fail(self, error: Answer) -> None:
        """The client gets no (whole) answer of a replica's."""
        self.withdraw()
        answer = self.answer
        if answer is None:
            self.status = error.status
            self.sent_bytes = len(error.body)
            self.first_byte_at = time.monotonic()
        self._over()
        if answer is None:
            self.client.answer(self.request, error)
        else:
            answer.end(error)

    # From the answer on its way

    def answer_ended(self) -> None:
        """The client has it all."""
        if self.status not in FAULTS:
            self._attempts.answered_well()
        self._over()
        if self._hedges and self.status == 200:
            self.model.hedge_delay.answered(self.ended_at - self.received)
        self.client.finished(self.request.keep_alive)

    def answer_broken(self, failure: Failure) -> None:
        """The replica ended it, but not as a whole one."""
        self._attempts.give_up(failure)

    def _begin(self, attempt: UpstreamRequest, head: ResponseHead) -> None:
        self._note(attempt, head)
        if head.has_events:
            stream = EventStream(self, head)
            self.answer = stream
            self._adopt(attempt, stream)
        else:
            self.answer = answer = ClientAnswer(self, head)
            attempt.pass_to(answer, self._paused)

    def _note(self, attempt: UpstreamRequest, head: ResponseHead) -> None:
        """The attempt's replica is the one that answers."""
        self.status = head.status
        self.choice = attempt.choice
        self.replica_id = attempt.replica.id
        self.first_byte_at = time.monotonic()

    def _adopt(self, attempt: UpstreamRequest, stream: EventStream) -> None:
        """The attempt's replica begins the stream or goes on with it."""
        if stream.blank:
            self.choice = attempt.choice
            self.first_byte_at = time.monotonic()
        else:
            self.choice = None
            self.metrics.migrations["moved"] += 1
            self._attempts.adopted(attempt)
        stream.read_from(attempt)
        attempt.pass_to(stream, self._paused)

    def _enter(self) -> None:
        """Its prompt is known as well as it will be."""
        if not self.ended_at and self.gateway.line.enter(self):
            self.start()

    # Ends

    def _expire(self, seconds: float) -> None:
        self.metrics.deadlines += 1
        self.fail(failure_responses.too_late(seconds))

    def _over(self) -> None:
        """However it ended: nothing of it goes on, and it is accounted for."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._hedge_timer is not None:
            self._hedge_timer.cancel()
        self._attempts.stop()
        if self.ticket.waits_since:
            self.gateway.line.leave(self)
        if self.answer is not None:
            self.answer.close()
        self.ended_at = time.monotonic()
        self.gateway.ledger.add(self)
        # No circle is left, and nothing large: it is freed now, not when the collector comes by.
        self.query.release_body()
        self.answer = None
        self._attempts.forget()
