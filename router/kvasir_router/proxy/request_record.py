"""Notes of a request on its way, of which its outcome is made."""

import time

from kvasir_router.admission.outcome import Outcome
from kvasir_router.admission.ticket import Ticket
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model
from kvasir_router.telemetry.model_metrics import ModelMetrics
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import Usage


class RequestRecord:
    """Kept from the request's arrival to its end. Times are of the monotonic clock, in seconds."""

    def __init__(
        self,
        query: Query,
        model: Model,
        metrics: ModelMetrics,
        ticket: Ticket,
        received: float = 0.0,
    ) -> None:
        """`received`: 0 = now."""
        self._query = query
        self._model = model
        self._metrics = metrics
        self._ticket = ticket
        self.received = received or time.monotonic()
        self.ended_at = 0.0
        """0 while it is on its way."""
        self.status = 0
        self.replica_id = ""
        """Replica that was asked last; empty when none was."""
        self.sent_bytes = 0
        """Bytes of the answer's body that went to the client."""
        self.choice: Choice | None = None
        """Choice whose replica answers; None without an answer, or with parts of several."""
        self._first_byte_at = 0.0

    @property
    def seconds(self) -> float:
        """Seconds that the request took; it has ended."""
        return self.ended_at - self.received

    def began(self, status: int) -> None:
        """Note that an answer begins that is no replica's, or none's yet."""
        self.status = status
        self._first_byte_at = time.monotonic()

    def answered_by(self, choice: Choice) -> None:
        """Note that the chosen replica's answer begins."""
        self.choice = choice
        self.replica_id = choice.replica.id
        self._first_byte_at = time.monotonic()

    def end(self, usage: Usage | None) -> Outcome:
        """Return the outcome, now that the request is over; `usage`: token counts, if the engine
        told them."""
        self.ended_at = time.monotonic()
        if usage is not None and self._query.resumed:
            usage = usage._replace(cached_tokens=None)  # it is what the client has said
        return Outcome(
            self._query,
            self._model,
            self._metrics,
            self._ticket,
            self.choice,
            self.replica_id,
            self.status,
            usage,
            self.sent_bytes,
            self.received,
            self._first_byte_at,
            self.ended_at,
        )
