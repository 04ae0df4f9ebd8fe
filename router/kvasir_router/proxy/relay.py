"""One request from a client: its answer, passed on from wherever it comes, and every end."""

import asyncio
import time
from functools import partial

from kvasir_router.admission.ticket import Ticket
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Replica
from kvasir_router.proxy.accounting import CLIENT_CLOSED
from kvasir_router.proxy.attempts.attempt import UpstreamRequest
from kvasir_router.proxy.attempts.attempts import Attempts
from kvasir_router.proxy.client_response import Client, ClientAnswer, Framing, answer_head
from kvasir_router.proxy.event_stream import EventStream, waiting_head
from kvasir_router.proxy.failures import failure_responses
from kvasir_router.proxy.failures.failure import FAULTS, Failure
from kvasir_router.proxy.failures.request_deadline import RequestDeadline
from kvasir_router.proxy.fallbacks import Fallbacks, FallbackTarget
from kvasir_router.proxy.kept_answer import KeptAnswer
from kvasir_router.proxy.relay_services import RelayServices
from kvasir_router.proxy.request_record import RequestRecord
from kvasir_router.proxy.resuming.obstacle import Obstacle
from kvasir_router.proxy.transcript import Transcript
from kvasir_router.telemetry.model_metrics import ModelMetrics
from kvasir_router.wire.engine_json import tells_of_error
from kvasir_router.wire.query import Query
from kvasir_router.wire.responses import Answer
from kvasir_router.wire.upstream import ResponseHead
from kvasir_router.wire.usage import Usage, decode_usage, usage_in_body


class Relay(FallbackTarget):
    """Between a client and the attempts at replicas. Every end goes through `_over`."""

    def __init__(
        self,
        services: RelayServices,
        client: Client,
        query: Query,
        model: Model,
        metrics: ModelMetrics,
        ticket: Ticket,
        fallbacks: Fallbacks | None = None,
        received: float = 0.0,
    ) -> None:
        """`received`: when the request came, by the monotonic clock; 0 = now."""
        self.streams = query.streams
        """True if the client wants events."""
        self._client = client
        self.request = query.request
        self._record = RequestRecord(query, model, metrics, ticket, received)
        super().__init__(services, query, model, metrics, ticket, fallbacks, self._record.received)
        self._answer: ClientAnswer | None = None
        """Answer on its way to the client."""
        deaths = fallbacks.deaths if fallbacks is not None else 0
        self._attempts = Attempts(self, services, query, model, metrics, ticket, deaths)
        self._keeps = False
        """True while a whole answer waits to be kept."""
        self._paused = False
        self._deadline = RequestDeadline(metrics)
        self._hedges = False
        self._hedge_timer: asyncio.TimerHandle | None = None
        model.budget.request(self._record.received)

    @property
    def has_answer(self) -> bool:
        """AnswerTarget.has_answer."""
        return self._answer is not None

    @property
    def is_blank(self) -> bool:
        """AnswerTarget.is_blank."""
        return not self._keeps and (self._answer is None or self._answer.blank)

    @property
    def untouched(self) -> bool:
        """FallbackTarget.untouched."""
        has_begun = self._keeps or (self._answer is not None and self._answer.begun)
        return not (has_begun or self._record.ended_at)

    @property
    def deaths(self) -> int:
        """FallbackTarget.deaths."""
        return self._attempts.deaths

    @property
    def transcript(self) -> Transcript | None:
        """AnswerTarget.transcript."""
        return self._answer.transcript if isinstance(self._answer, EventStream) else None

    # From the client's connection

    def open(self) -> None:
        """Begin; called once."""
        services = self._services
        if services.poison.holds(self.request.body):
            self._metrics.poison["refused"] += 1
            self.fail(failure_responses.poison())
            return
        failover = services.failover
        seconds = self.request.timeout or failover.request_timeout
        self._deadline.start(self, seconds, self._record.received, self.ticket.ends)
        if failover.hedging and self.request.endpoint.hedged and not self.streams:
            self._hedges = True
            delay = self.model.hedge_delay.seconds
            if delay is not None:
                loop = asyncio.get_running_loop()
                self._hedge_timer = loop.call_later(delay, self._send_hedge)
        if self.model.spec.tokenizer is None or not services.tokenizing.prepare(
            self.query, self.model, self._enter
        ):
            self._enter()

    def pause(self) -> None:
        """Stop reading the answer: the client does not keep up."""
        self._paused = True
        self._attempts.pause()

    def resume(self) -> None:
        """Read on: the client keeps up again."""
        self._paused = False
        self._attempts.resume()

    def client_gone(self) -> None:
        """Stop the replica's work on the request at once."""
        self._record.status = CLIENT_CLOSED
        self._over(None)

    def cut(self) -> None:
        """End the answer: the router stops and cannot wait for the rest."""
        self.fail(failure_responses.stopping())

    def defect(self, error: Exception) -> None:
        """End the request, and nothing else: the router's own code raised for it."""
        tasks, request_id = self._services.tasks, self.request.request_id.decode()
        tasks.defect("request", error, request_id=request_id, model=self.model.name)
        if self._record.ended_at:
            return
        try:
            self.fail(failure_responses.defect())
        except Exception as again:
            tasks.defect("request", again, request_id=request_id, model=self.model.name)
            self._client.abort(reset=True)

    # From the queue

    def start(self) -> None:
        """Look for a replica."""
        if not self._attempts.start():
            self.wait()

    @property
    def moving(self) -> bool:
        """Return whether it waits to go on with a stream that has begun."""
        return self._attempts.candidates.limited

    def refuse(self, answer: Answer) -> None:
        """Refuse the request: its queue timeout has passed."""
        if self.is_blank:
            self.fail(failure_responses.waited_in_vain(self.model, self.query.lora, answer))
        else:
            self.lose(Obstacle.REPLICA)

    def heartbeat(self) -> None:
        """Tell the client of a stream that it waits on."""
        if self._answer is None:
            if self.may_fall_back:
                return  # another model's answer may yet be of another kind
            self._record.began(200)
            self._answer = self._stream(waiting_head())
        if isinstance(self._answer, EventStream):
            self._answer.beat()

    # From the attempts

    def wait(self) -> None:
        """Wait in the queue: no replica may take the request now. Fail if the policy raised."""
        candidates = self._attempts.candidates
        if candidates.policy_failed:
            self.fail(failure_responses.policy_failed(self.model))
            return
        if self.ends_at_once():
            return
        candidates.forget_tried()
        self.query.read_prompt()
        self._services.queue.join(self)

    def asked(self, replica: Replica) -> None:
        """AnswerTarget.asked."""
        self._record.replica_id = replica.id

    def pass_on(self, attempt: UpstreamRequest, head: ResponseHead) -> None:
        """AnswerTarget.pass_on."""
        if self._answer is None:
            self._begin(attempt, head)
        elif isinstance(self._answer, EventStream) and head.status == 200 and head.has_events:
            self._adopt(attempt, self._answer)
        else:
            self.lose(Obstacle.REFUSED)

    def pass_whole(self, attempt: UpstreamRequest, head: ResponseHead, body: bytes) -> None:
        """AnswerTarget.pass_whole."""
        keeper = self.query.keeper
        if self._answer is None and keeper is not None and head.status == 200:
            self._keeps = True
            keeper.keep_body(body, partial(self._pass_kept, attempt, head, body))
        else:
            self._pass_whole(attempt, head, body)

    def _pass_kept(self, attempt: UpstreamRequest, head: ResponseHead, body: bytes) -> None:
        """Pass on an answer that was kept, if somebody still waits for it."""
        self._keeps = False
        if not self._record.ended_at:
            self._pass_whole(attempt, head, body)

    def _pass_whole(self, attempt: UpstreamRequest, head: ResponseHead, body: bytes) -> None:
        if self._answer is None:
            self._record.status = head.status
            self._record.answered_by(attempt.choice)
            self._record.sent_bytes = len(body)
            usage = None
            if head.usage:
                usage = decode_usage(head.usage)
            elif head.status == 200:
                usage = usage_in_body(body)
            head_lines = answer_head(self._client, self.request, head, Framing.LENGTH)
            self._client.write(head_lines + body)
            self.answer_ended(usage)
        elif self._answer.blank and head.status != 200 and tells_of_error(body):
            self.fail(Answer(head.status, b" ".join(body.splitlines())))  # for an event
        else:
            self.lose(Obstacle.REFUSED)

    def withdraw(self) -> None:
        """Take back the answer of a replica that failed. One of which the client has nothing has
        never begun: what comes instead may be of another kind."""
        answer = self._answer
        if answer is not None and not answer.begun:
            answer.close()
            self._answer = None
            self._record.choice = None

    def finish_stream(self) -> None:
        """AnswerTarget.finish_stream: the replica broke off before its last word."""
        if isinstance(self._answer, EventStream):
            self._metrics.migrations["completed"] += 1
            self._answer.finish()

    def lose(self, obstacle: Obstacle, last_word: Answer | None = None) -> None:
        """AnswerTarget.lose."""
        self._metrics.migrations[obstacle.value] += 1
        self._metrics.broken += 1
        self.fail(last_word or failure_responses.broken_off(self.model, self._record.replica_id))

    def end_as_poison(self) -> None:
        """AnswerTarget.end_as_poison."""
        self._services.poison.add(self.request.body)
        self._metrics.poison["ended"] += 1
        self.fail(failure_responses.poison())

    def fail(self, error: Answer) -> None:
        """AnswerTarget.fail."""
        self.withdraw()
        client, request = self._client, self.request
        if self._answer is None:
            self._record.began(error.status)
            self._record.sent_bytes = len(error.body)
            self._over(None)
            client.answer(request, error)
        elif self._answer.end(error):
            self._over(None)
            client.finished(request.keep_alive)
        else:
            # It ends before its length or its last chunk. HTTP/1.0 may know of neither, and takes
            # any end but a reset for the answer's.
            self._over(None)
            client.abort(reset=request.http10)

    # From the answer on its way

    def answer_ended(self, usage: Usage | None) -> None:
        """AnswerObserver.answer_ended."""
        record = self._record
        if record.status not in FAULTS:
            self._attempts.answered_well()
        self._over(usage)
        if self._hedges and record.status == 200:
            self.model.hedge_delay.answered(record.seconds)
        self._client.finished(self.request.keep_alive)

    def answer_broken(self, failure: Failure) -> None:
        """AnswerObserver.answer_broken."""
        self._attempts.give_up(failure)

    def _begin(self, attempt: UpstreamRequest, head: ResponseHead) -> None:
        self._record.status = head.status
        if head.has_events:
            stream = self._stream(head)
            self._answer = stream
            self._adopt(attempt, stream)
        else:
            self._record.answered_by(attempt.choice)
            self._answer = answer = self._passed(head)
            attempt.pass_to(answer, self._paused)

    def _passed(self, head: ResponseHead) -> ClientAnswer:
        """Return what passes a long answer on that is no stream."""
        keeper = self.query.keeper
        if keeper is not None and head.status == 200:
            return KeptAnswer(self, self._client, self.request, head, keeper)
        return ClientAnswer(self, self._client, self.request, head)

    def _stream(self, head: ResponseHead) -> EventStream:
        transcripts = self._services.transcripts
        return EventStream(self, self._client, self.query, head, transcripts)

    def _adopt(self, attempt: UpstreamRequest, stream: EventStream) -> None:
        """Let the attempt's replica begin the stream, or go on with it."""
        if stream.blank:
            self._record.answered_by(attempt.choice)
        else:
            self._record.choice = None
            self._metrics.migrations["moved"] += 1
            self._attempts.adopted(attempt)
        stream.read_from(attempt)
        attempt.pass_to(stream, self._paused)

    def _enter(self) -> None:
        """Enter the queue: the prompt is known as well as it will be."""
        try:
            if self._record.ended_at or self.ends_at_once():
                return
            if self._services.queue.enter(self):
                self.start()
            elif not self._record.ended_at:
                self.query.read_prompt()
        except Exception as error:
            self.defect(error)

    def _send_hedge(self) -> None:
        try:
            self._attempts.send_hedge()
        except Exception as error:
            self.defect(error)

    # Ends

    def _stop(self) -> None:
        """Stop all that goes on for the request."""
        self._deadline.cancel()
        if self._hedge_timer is not None:
            self._hedge_timer.cancel()
        self._attempts.stop()
        if self.ticket.waits_since:
            self._services.queue.leave(self)

    def release(self) -> None:
        """FallbackTarget.release."""
        self._stop()
        self._record.ended_at = time.monotonic()
        self._attempts.release()

    def _over(self, usage: Usage | None) -> None:
        """Stop, and account for the request, however it ended."""
        self._stop()
        answer = self._answer
        if answer is not None:
            self._record.sent_bytes = answer.sent_bytes
            answer.close()
        self._services.accounting.add(self._record.end(usage))
        # No circle is left, and nothing large: it is freed now, not when the collector comes by.
        self.query.release_body()
        self._answer = None
        self._attempts.release()
