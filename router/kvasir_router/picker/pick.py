"""One request whose bytes a gateway carries: which replica it goes to, and its end."""

import time
from abc import abstractmethod
from collections.abc import Sequence

from kvasir_router.admission.ticket import Ticket
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Replica
from kvasir_router.picker.pool import Reach, endpoint_of_replica
from kvasir_router.proxy.accounting import CLIENT_CLOSED
from kvasir_router.proxy.attempts.assignment import Assignment
from kvasir_router.proxy.attempts.candidates import Candidates
from kvasir_router.proxy.attempts.model_field import takes_the_same
from kvasir_router.proxy.client.gateway_client import GatewayClient
from kvasir_router.proxy.failures import failure_responses
from kvasir_router.proxy.failures.failure import FAULTS, of_answer
from kvasir_router.proxy.failures.request_deadline import RequestDeadline
from kvasir_router.proxy.fallbacks import Fallbacks, FallbackTarget
from kvasir_router.proxy.relay_services import RelayServices
from kvasir_router.proxy.request_record import RequestRecord
from kvasir_router.proxy.transcript import Transcript
from kvasir_router.telemetry.model_metrics import ModelMetrics
from kvasir_router.wire.query import Query
from kvasir_router.wire.responses import Answer
from kvasir_router.wire.usage import Usage


class PickClient(GatewayClient):
    """Gateway that asks, as a pick needs it."""

    @abstractmethod
    def reach(self, model: Model) -> Reach:
        """Return the replicas that it can send the request to."""

    @property
    @abstractmethod
    def endpoints(self) -> int:
        """Return how many replicas it may be told for a request."""

    def picked(self, replicas: Sequence[Replica], query: Query, model: Model) -> None:
        """Send the request to the first of the model's replicas that can be reached."""

    def waits(self, model: Model) -> None:
        """Let it wait: no replica may take the request now."""


class Pick(FallbackTarget):
    """Beside `Relay`, which carries the bytes itself: the same queue, policy, counts and account.

    Until a replica is picked it may wait, fail or fall back. Then the gateway has it, and tells of
    its answer. Every end goes through `_over`, also that of a gateway that breaks off; what is
    told after the end is of no account.
    """

    def __init__(
        self,
        services: RelayServices,
        client: PickClient,
        query: Query,
        model: Model,
        metrics: ModelMetrics,
        ticket: Ticket,
        fallbacks: Fallbacks | None,
        received: float,
    ) -> None:
        """`received`: when the request came, by the monotonic clock; 0 = now."""
        self.request = query.request
        self.streams = False
        """Nothing can be told to its client while it waits."""
        self._client = client
        self._record = RequestRecord(query, model, metrics, ticket, received)
        super().__init__(services, query, model, metrics, ticket, fallbacks, self._record.received)
        self._candidates = Candidates(query, model)
        self._reach = client.reach(model)
        self._assignment: Assignment | None = None
        self._deadline = RequestDeadline(metrics)
        model.budget.request(self._record.received)

    # AnswerTarget, FallbackTarget

    @property
    def has_answer(self) -> bool:
        """AnswerTarget.has_answer."""
        return self._assignment is not None

    @property
    def is_blank(self) -> bool:
        """AnswerTarget.is_blank."""
        return self._assignment is None

    @property
    def transcript(self) -> Transcript | None:
        """AnswerTarget.transcript."""
        return None

    @property
    def untouched(self) -> bool:
        """FallbackTarget.untouched."""
        return self._assignment is None and not self._record.ended_at

    @property
    def deaths(self) -> int:
        """FallbackTarget.deaths."""
        return 0

    def release(self) -> None:
        """FallbackTarget.release."""
        self._stop()
        self._record.ended_at = time.monotonic()

    # From the gateway, before it has an endpoint

    def open(self) -> None:
        """Begin; called once."""
        services = self._services
        if services.poison.holds(self.request.body):
            self._metrics.poison["refused"] += 1
            self.fail(failure_responses.poison())
            return
        seconds = self.request.timeout or services.failover.request_timeout
        self._deadline.start(self, seconds, self._record.received, self.ticket.ends)
        if self.model.spec.tokenizer is None or not services.tokenizing.prepare(
            self.query, self.model, self._enter
        ):
            self._enter()

    def gone(self) -> None:
        """The gateway has broken off, or never said how the answer ended."""
        if not self._record.ended_at:
            self._record.status = CLIENT_CLOSED
            self._over(None)

    def cut(self) -> None:
        """End it: the router stops and cannot wait for the rest."""
        if self._assignment is None:
            self.fail(failure_responses.stopping())
        else:
            self.gone()

    def defect(self, error: Exception) -> None:
        """AnswerTarget.defect."""
        tasks, request_id = self._services.tasks, self.request.request_id.decode()
        tasks.defect("request", error, request_id=request_id, model=self.model.name)
        if self._assignment is not None:
            self.gone()
        elif not self._record.ended_at:
            self.fail(failure_responses.defect())

    # Its answer, as the gateway tells of it

    def answer_began(self, status: int, served: str = "") -> None:
        """The head of an answer has come: the replica's, or the gateway's own, which need not wait
        for a pick; `served`: the endpoint that has answered, if the gateway says."""
        if self._assignment is None:
            self.gone()
        elif not self._record.ended_at:
            assignment = self._serving(self._assignment, served)
            assignment.began()
            self._record.status = status
            self._record.answered_by(assignment.choice)

    def _serving(self, assignment: Assignment, endpoint: str) -> Assignment:
        """Return the assignment at the endpoint that has answered: a gateway that could not reach
        the first one goes on to the next. What is counted moves with it."""
        if not endpoint or endpoint == endpoint_of_replica(assignment.replica):
            return assignment
        for replica in self.model.replicas.values():
            if endpoint_of_replica(replica) == endpoint:
                assignment.replica.request_probe()
                assignment.ended()
                self._record.replica_id = replica.id
                self._assignment = Assignment(self.query, self.model, Choice(replica))
                return self._assignment
        return assignment

    def answer_is_over(self, usage: Usage | None, size: int) -> None:
        """All of it has come, `size` bytes of body."""
        assignment, record = self._assignment, self._record
        if assignment is None or record.ended_at:
            return
        failure = of_answer(record.status, b"", contract=False)
        if failure is not None:
            assignment.note(failure)
        elif record.status and record.status not in FAULTS:
            assignment.replica.succeeded()
        record.sent_bytes = size
        self._over(usage if record.status == 200 else None)

    # From the queue

    def start(self) -> None:
        """Look for a replica."""
        candidates, beyond = self._candidates, self._reach.beyond()
        candidates.forget_tried()
        for each in beyond:
            candidates.asked(each)
        choice = candidates.choose()
        if choice is not None:
            replicas = self._in_order(choice)
            self._record.replica_id = choice.replica.id
            self._assignment = Assignment(self.query, self.model, choice)
            self._deadline.cancel()  # a gateway ends what it has by its own time limit
            self._client.picked(replicas, self.query, self.model)
            self.query.read_prompt()
            self.query.release_body()  # the gateway has it
        elif candidates.policy_failed:
            self.fail(failure_responses.policy_failed(self.model))
        elif not self.ends_at_once():
            self._wait(limited=bool(beyond))

    def _in_order(self, first: Choice) -> list[Replica]:
        """Return the replicas that the gateway may try, the chosen one first: those that take the
        same body, since it is given one for all of them."""
        candidates, found, choice = self._candidates, [first.replica], first
        while len(found) < self._client.endpoints:
            candidates.asked(choice.replica)
            another = candidates.choose()
            if another is None:
                break
            choice, engine = another, another.replica.spec.engine
            if takes_the_same(self.query, first.replica.spec.engine, engine):
                found.append(choice.replica)
        return found

    @property
    def moving(self) -> bool:
        """Return whether it goes before others: it has begun nowhere."""
        return False

    def refuse(self, answer: Answer) -> None:
        """Refuse it: its queue timeout has passed, or there is no room."""
        self.fail(failure_responses.waited_in_vain(self.model, self.query.lora, answer))

    def heartbeat(self) -> None:
        """Its client cannot be told that it waits."""

    def _wait(self, *, limited: bool) -> None:
        """Wait in the queue. One that may only go to some replicas does not: it would hold up those
        that others could serve."""
        if limited:
            self._fail_limited()
            return
        self.query.read_prompt()
        self._services.queue.join(self)
        self._tell_of_wait()

    def _fail_limited(self) -> None:
        adapter, reach = self.query.lora, self._reach
        if reach.serves() and not reach.serves(adapter):
            self.fail(failure_responses.adapter_not_loaded(self.model, adapter))
        else:
            self.fail(failure_responses.no_endpoint(self.model, full=reach.serves()))

    def _tell_of_wait(self) -> None:
        if self.untouched:
            self._client.waits(self.model)

    def _enter(self) -> None:
        """Enter the queue: the prompt is known as well as it will be."""
        try:
            if self._record.ended_at or self.ends_at_once():
                return
            if self._services.queue.enter(self):
                self.start()
            elif not self._record.ended_at:
                self.query.read_prompt()
                self._tell_of_wait()
        except Exception as error:
            self.defect(error)

    # Ends

    def fail(self, error: Answer) -> None:
        """AnswerTarget.fail."""
        self._record.began(error.status)
        self._record.sent_bytes = len(error.body)
        self._over(None)
        self._client.answer(self.request, error)

    def _stop(self) -> None:
        self._deadline.cancel()
        if self._assignment is not None:
            self._assignment.ended()
        elif self.ticket.waits_since:
            self._services.queue.leave(self)

    def _over(self, usage: Usage | None) -> None:
        """Stop, and account for the request, however it ended."""
        self._stop()
        self._services.accounting.add(self._record.end(usage))
        self.query.release_body()
