"""Attempts at replicas for one request: one after the other, and a hedge beside."""

import time

from kvasir_router.admission.ticket import Ticket
from kvasir_router.discovery.specs import OWN_ENGINES, Departure
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.proxy.answer_target import AnswerTarget
from kvasir_router.proxy.attempts.attempt import AttemptObserver, UpstreamRequest
from kvasir_router.proxy.attempts.candidates import Candidates
from kvasir_router.proxy.attempts.outgoing_request import OutgoingRequest
from kvasir_router.proxy.attempts.running_attempts import RunningAttempts
from kvasir_router.proxy.attempts.stream_silence import StreamLimits
from kvasir_router.proxy.attempts.upstream_rendering import retry_seconds
from kvasir_router.proxy.failures import failure_responses
from kvasir_router.proxy.failures.failure import (
    REDIRECT,
    REFUSED_KEY,
    Failure,
    Kind,
    Moves,
    of_answer,
    of_upstream,
)
from kvasir_router.proxy.migration import can_wait
from kvasir_router.proxy.relay_services import RelayServices
from kvasir_router.proxy.resuming.obstacle import Obstacle, ObstacleError
from kvasir_router.telemetry.model_metrics import ModelMetrics
from kvasir_router.wire.query import Query
from kvasir_router.wire.responses import Answer
from kvasir_router.wire.upstream import ResponseHead

_SUSPECT = Failure("suspect", Kind.LEAVING)
_DEPARTING = Failure("departing", Kind.HANDOVER)
_MAY_HAVE_BEGUN = ("500", "502", "504")
"""Statuses of a replica that may have stored or done something."""
_NOT_BEGUN = (Kind.UNSENT, Kind.LEAVING)
"""Failures of a replica that has done nothing for the request."""


class Attempts(AttemptObserver):
    """Up to two upstream requests at once, the second one a hedge.

    While the client has nothing of an answer, a failed attempt is followed by another one. After
    that only a stream can be resumed, and only by an equivalent replica.
    """

    __deletable__ = ("_target",)  # for mypyc

    def __init__(
        self,
        target: AnswerTarget,
        services: RelayServices,
        query: Query,
        model: Model,
        metrics: ModelMetrics,
        ticket: Ticket,
        deaths: int = 0,
    ) -> None:
        """`deaths`: those of another model's replicas, that the request was in flight at."""
        self._target = target
        self._services = services
        self._query = query
        self._model = model
        self._metrics = metrics
        self._ticket = ticket
        self._moves = Moves(services.failover.max_moves, deaths)
        self.candidates = Candidates(query, model)
        self._outgoing = OutgoingRequest(query, services.fleet_secrets, model.name)
        self._limits: StreamLimits | None = None
        if query.streams:
            failover = services.failover
            self._limits = StreamLimits(failover.first_byte_timeout, failover.stream_idle_timeout)
        self._running = RunningAttempts()
        self._keeps_nothing = False
        """True if the replica asked last is an engine that keeps no responses."""

    @property
    def deaths(self) -> int:
        """Return how many replicas ended with the request in flight."""
        return self._moves.deaths

    @property
    def _retried(self) -> bool:
        """Return whether another replica may get what one may have begun with."""
        endpoint = self._query.request.endpoint
        return endpoint.retried or (endpoint.resumed and self._keeps_nothing)

    def start(self) -> bool:
        """Look for a replica; False when none may take the request. After a wait, those that were
        gone before may serve again."""
        self.candidates.forget_tried()
        choice = self.candidates.choose_next()
        if choice is not None:
            self._send(choice)
        return choice is not None

    def send_hedge(self) -> None:
        """The answer is late: ask a second replica, and take whichever is first."""
        running = self._running
        if running.current is None or self._target.has_answer:
            return
        choice = self.candidates.choose()
        if choice is not None and self._model.budget.spend(time.monotonic()):
            self._metrics.hedges["sent"] += 1
            running.hedge = hedge = self._make(choice)
            hedge.start(afresh=self._moves.in_doubt)

    def pause(self) -> None:
        """Stop reading the answer that is passed on."""
        self._running.pause()

    def resume(self) -> None:
        """Read on."""
        self._running.resume()

    def answered_well(self) -> None:
        """The answer is complete and no fault of the replica's."""
        if self._running.current is not None:
            self._running.current.replica.succeeded()

    def give_up(self, failure: Failure) -> None:
        """The replica ended its answer as one that is not complete."""
        if self._running.current is not None:
            self._running.current.give_up(failure)

    def stop(self) -> None:
        """Whatever runs is stopped at once."""
        self._running.leave()

    def release(self) -> None:
        """Free what the request held; nothing here is called again."""
        del self._target
        self._outgoing.release()

    # From an attempt

    def defect(self, error: Exception) -> None:
        """End the request: the router's own code raised for it."""
        target: AnswerTarget | None = getattr(self, "_target", None)
        if target is not None:
            target.defect(error)
        else:  # it is over
            self._services.tasks.defect("request", error)

    def rendered(self, attempt: UpstreamRequest) -> tuple[bytes, bytes]:
        """AttemptObserver.rendered."""
        return self._outgoing.rendered(attempt)

    def answer_began(self, attempt: UpstreamRequest, head: ResponseHead) -> None:
        """Take the head of an answer that is passed on as it comes."""
        failure = _failure_of(attempt, head, b"")
        if failure is None or not self._goes_on(attempt, head, failure):
            if self._running.keep(attempt):
                self._metrics.hedges["won"] += 1
            self._target.pass_on(attempt, head)

    def answered(self, attempt: UpstreamRequest, head: ResponseHead, body: bytes) -> None:
        """Take a whole answer."""
        failure = _failure_of(attempt, head, body)
        if failure is not None and failure.reason == "handover":
            self._outgoing.go_on_from(body)
        if failure is None or not self._goes_on(attempt, head, failure):
            if self._running.keep(attempt):
                self._metrics.hedges["won"] += 1
            self._target.pass_whole(attempt, head, body)

    def failed(self, attempt: UpstreamRequest, failure: Failure) -> None:
        """Take note that it has left its replica; its answer, if it had begun, is broken."""
        another_runs = self._drop(attempt)
        if failure.kind is Kind.DEATH:
            self.candidates.died(attempt.replica)
        if self._moves.failed(failure.kind):
            self._target.end_as_poison()
        elif another_runs:
            return
        elif self._target.is_blank:
            self._go_elsewhere(attempt.replica, failure)
        else:
            self._go_on(attempt, failure)

    def replica_suspected(self, attempt: UpstreamRequest) -> None:
        """Go to a replica that answers its probes and stays, if there is one. What is no stream
        stays where it is while that answers: it would begin anew."""
        failure = _DEPARTING if attempt.replica.gives_streams_away else _SUSPECT
        if not self._retried or (failure is _DEPARTING and not self._query.streams):
            return
        blank = self._target.is_blank
        candidates = self.candidates
        choice = candidates.choose() if blank else candidates.choose_alike(attempt.replica)
        if choice is None or choice.replica.health is not Health.READY:
            return
        if failure is _DEPARTING and choice.replica.departure is not Departure.NONE:
            return
        if not blank:
            try:
                self._ask_for_rest(attempt)
            except ObstacleError:
                return
        if self._allows(failure.kind):
            attempt.leave()
            if not self._drop(attempt):
                self._retry(choice, failure)

    # One after the other

    def _send(self, choice: Choice) -> None:
        self._running.current = attempt = self._make(choice)
        attempt.start(afresh=self._moves.in_doubt or not self._retried)

    def _make(self, choice: Choice) -> UpstreamRequest:
        self.candidates.asked(choice.replica)
        self._target.asked(choice.replica)
        self._keeps_nothing = choice.replica.spec.engine in OWN_ENGINES
        services = self._services
        contract = bool(services.fleet_secrets.lines)
        return UpstreamRequest(
            self, self._query, self._model, choice, contract, services.tasks, self._limits
        )

    def _drop(self, attempt: UpstreamRequest) -> bool:
        """Drop a failed upstream request; return whether another one continues."""
        self._target.withdraw()
        return self._running.drop(attempt)

    def _retry(self, choice: Choice, failure: Failure) -> None:
        self._metrics.retries[failure.reason] += 1
        self._send(choice)

    def _allows(self, kind: Kind) -> bool:
        return self._moves.allows(kind, self._model.budget, time.monotonic())

    def _go_elsewhere(self, replica: Replica, failure: Failure) -> None:
        if not self._retried and failure.kind not in _NOT_BEGUN:
            self._target.fail(self._last_word(replica, failure))
            return
        if failure.kind is Kind.CHARGED:
            self.candidates.faulted(replica)
            self._ticket.waits_since = 0.0  # an earlier wait is over
        choice = self.candidates.choose()
        if choice is None and self._falls_back(failure):
            return
        if choice is None and (self.candidates.policy_failed or self._may_wait(failure)):
            self._target.wait()
        elif choice is not None and self._allows(failure.kind):
            self._retry(choice, failure)
        elif self._target.fall_back(failure.reason):
            return
        elif failure.seconds:
            self._target.fail(self._last_word(replica, failure))
        else:
            self._target.fail(failure_responses.not_ready(self._model))

    def _falls_back(self, failure: Failure) -> bool:
        """Go to another model, if no replica that was not asked serves; whether it did."""
        candidates = self.candidates
        if candidates.policy_failed or candidates.another_serves:
            return False
        return self._target.fall_back(failure.reason)

    def _may_wait(self, failure: Failure) -> bool:
        """Return whether another replica may take it later. One that is gone may come back; after a
        fault there must be one that serves, and is full."""
        if failure.kind is not Kind.CHARGED:
            return True
        return self.candidates.another_serves and self._allows(failure.kind)

    def _last_word(self, replica: Replica, failure: Failure) -> Answer:
        if failure.seconds:
            return failure_responses.silent(self._model, replica.id, failure.seconds)
        return failure_responses.broken_off(self._model, replica.id)

    def _goes_on(self, attempt: UpstreamRequest, head: ResponseHead, failure: Failure) -> bool:
        """Return whether an error response is not passed on: somebody else is asked, or the client
        gets another one."""
        if self._retry_on_error(attempt, failure):
            return True
        may = self._retried or failure.reason not in _MAY_HAVE_BEGUN
        if may and self._target.may_fall_back:
            attempt.leave()
            self._drop(attempt)
            return self._target.fall_back(failure.reason)
        if failure.reason not in (REFUSED_KEY, REDIRECT):
            return False
        attempt.leave()
        self._drop(attempt)
        refused = failure_responses.refused_upstream
        self._target.fail(refused(self._model, attempt.replica.id, head.status))
        return True

    def _retry_on_error(self, attempt: UpstreamRequest, failure: Failure) -> bool:
        """Return whether to discard an error response and retry elsewhere.

        One that says that the replica is ending always is, and any in the midst of a stream."""
        attempt.note(failure)
        if failure.kind is not Kind.CHARGED or not self._target.is_blank:
            attempt.leave()
            self.failed(attempt, failure)
            return True
        if self._running.hedge is not None:
            attempt.leave()
            return self._drop(attempt)
        choice = self.candidates.choose() if self._retried else None
        if choice is None or not self._allows(failure.kind):
            return False
        attempt.leave()
        self._retry(choice, failure)
        return True

    # Going on with a stream

    def adopted(self, attempt: UpstreamRequest) -> None:
        """Go on with the attempt's replica."""
        self.candidates.adopted(attempt.replica)

    def _ask_for_rest(self, attempt: UpstreamRequest) -> None:
        """Let the next replica go on with the attempt's stream. Raises ObstacleError."""
        if not self._services.failover.migration:
            raise ObstacleError(Obstacle.OFF)
        if not attempt.contract:
            raise ObstacleError(Obstacle.CONTRACT)
        self._outgoing.go_on_after(self._target.transcript)

    def _go_on(self, attempt: UpstreamRequest, failure: Failure) -> None:
        try:
            self._ask_for_rest(attempt)
        except ObstacleError as error:
            if error.obstacle is Obstacle.NOTHING_LEFT:
                self._target.finish_stream()
            else:
                self._target.lose(error.obstacle, self._last_word(attempt.replica, failure))
            return
        choice = self.candidates.choose_alike(attempt.replica)
        if choice is None and not can_wait(self._model, attempt.replica):
            self._target.lose(Obstacle.REPLICA)
        elif not self._allows(failure.kind):
            self._target.lose(Obstacle.MOVES)
        else:
            self._move(attempt.replica, choice, failure)

    def _move(self, replica: Replica, choice: Choice | None, failure: Failure) -> None:
        """Go on with the replica's stream elsewhere, at once or when somebody has room."""
        if self.candidates.broken is None:
            self._ticket.waits_since = 0.0  # an earlier wait is over
        self.candidates.broken = replica
        if choice is not None:
            self._retry(choice, failure)
        else:
            self._metrics.retries[failure.reason] += 1
            self._metrics.migrations["waited"] += 1
            self._target.wait()


def _failure_of(attempt: UpstreamRequest, head: ResponseHead, body: bytes) -> Failure | None:
    if attempt.foreign:
        rests = head.status in (429, 503)
        return of_upstream(head.status, retry_seconds(head.lines) if rests else 0.0)
    return of_answer(head.status, body, attempt.contract)
