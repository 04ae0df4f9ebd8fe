"""Models that a request may go to yet, where the one that it names does not answer it."""

from collections.abc import Callable
from math import inf
from urllib.parse import quote

from kvasir_router.admission.ticket import Ticket
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.target import Target
from kvasir_router.proxy.answer_target import AnswerTarget
from kvasir_router.proxy.failures.failure_responses import adapter_is_missing, adapter_not_loaded
from kvasir_router.proxy.relay_services import RelayServices
from kvasir_router.telemetry.model_metrics import ModelMetrics
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query

MODEL_HEADER = b"X-Kvasir-Model"
"""Name of the model that has answered, in answers of models with fallbacks."""

NO_REPLICA = "no_replica"
QUEUE_TIME = "queue_time"
QUEUE_FULL = "queue_full"
"""Reasons of a fallback beside those of failures."""


class Fallbacks:
    """Fallbacks of one request, in their order, each once: those of the model that it names alone,
    so that no chain of fallbacks of fallbacks can be a circle.

    One that does not exist, that the request's key may not use, or that has no replica that serves
    is passed over: the request then waits for its own model as it would without fallbacks.
    """

    def __init__(
        self,
        model: Model,
        find: Callable[[str], Target | None],
        go: Callable[[Target, "Fallbacks", float], None],
    ) -> None:
        """`find` returns what a name stands for, None if the request may not have it. `go` lets a
        model answer a request that came at a time of the monotonic clock."""
        self.after = model.spec.fallback_after
        """Seconds that the request waits for a replica with room."""
        self.go = go
        self.deaths = 0
        """Replicas that ended with the request in flight, before it went to another model."""
        self._find = find
        self._left = list(model.spec.fallbacks)
        self._asked = [model]

    def peek(self) -> Target | None:
        """Return the model that the request would go to now."""
        for name in self._left:
            target = self._find(name)
            if target is None or target.model in self._asked:
                continue
            if target.model.can_serve(target.adapter):
                return target
        return None

    @property
    def before(self) -> Model:
        """Model that was asked before the one that is asked now."""
        return self._asked[-2]

    def take(self, target: Target) -> None:
        """Take note that the request goes to the model."""
        self._asked.append(target.model)


class FallbackTarget(AnswerTarget):
    """Target of attempts whose request may wait, or go to another model."""

    def __init__(
        self,
        services: RelayServices,
        query: Query,
        model: Model,
        metrics: ModelMetrics,
        ticket: Ticket,
        fallbacks: Fallbacks | None,
        received: float,
    ) -> None:
        """`received`: when the request came, by the monotonic clock."""
        self._services = services
        self.query = query
        self.model = model
        self._metrics = metrics
        self.ticket = ticket
        self._fallbacks = fallbacks
        self._received = received

    @property
    def untouched(self) -> bool:
        """Return whether the request is under way and its client has not even a header."""
        raise NotImplementedError

    @property
    def deaths(self) -> int:
        """Replicas that ended with the request in flight."""
        raise NotImplementedError

    def release(self) -> None:
        """Stop all that goes on for the request, without an account or an answer."""
        raise NotImplementedError

    @property
    def adapter(self) -> str:
        """Waiter.adapter."""
        return self.query.lora

    @property
    def preferred_has_room(self) -> bool:
        """Waiter.preferred_has_room."""
        try:
            return self.model.prefers_room(self.query)
        except Exception:
            return True  # its turn: `start` will end it

    @property
    def may_fall_back(self) -> bool:
        """AnswerTarget.may_fall_back."""
        return self._fallback() is not None

    @property
    def patience(self) -> float:
        """Seconds that it waits for a replica with room, however long others do."""
        fallbacks = self._fallbacks
        return inf if fallbacks is None or self._fallback() is None else fallbacks.after

    def fall_back(self, reason: str) -> bool:
        """AnswerTarget.fall_back."""
        fallbacks, target = self._fallbacks, self._fallback()
        if fallbacks is None or target is None:
            return False
        self._metrics.fallbacks[target.model.name, reason] += 1
        if reason == NO_REPLICA:
            self._services.queue.missed(self.model)
        fallbacks.deaths = self.deaths
        self.withdraw()
        self.release()
        self._services.queue.settle(self.model, self.ticket, 0, 0)
        self.ticket.waits_since = 0.0
        fallbacks.take(target)
        fallbacks.go(target, fallbacks, self._received)
        return True

    def ends_at_once(self) -> bool:
        """Do not wait where no replica serves what is asked for: go to a fallback, or end if it is
        an adapter that none holds. Return whether that is so."""
        model, adapter = self.model, self.query.lora
        if model.can_serve(adapter):
            return False
        if self.fall_back(NO_REPLICA):
            return True
        if not (self.untouched and adapter_is_missing(model, adapter)):
            return False
        self.fail(adapter_not_loaded(model, adapter))
        return True

    def _fallback(self) -> Target | None:
        """Return the model that may answer in the place of this one, if there is one."""
        if self._fallbacks is None or not self.untouched:
            return None
        return self._fallbacks.peek()


def model_line(name: str) -> bytes:
    """Return the header line that says which model answers."""
    return b"%b: %b\r\n" % (MODEL_HEADER, quote(name, safe="/:@._~+ -").encode())


def answers_instead(request: Request, before: str, now: str) -> None:
    """Say in the answer's header that another model answers than the one that it named before."""
    request.answer_lines = request.answer_lines.replace(model_line(before), model_line(now))
