"""Numbers of a relayed request when it is over: for metrics, limits, signals, traces and log."""

from typing import NamedTuple

from kvasir_router.admission.ticket import Ticket
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model
from kvasir_router.telemetry.model_metrics import ModelMetrics
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import Usage


class Outcome(NamedTuple):
    """End of one relayed request. Times are of the monotonic clock, in seconds."""

    query: Query
    model: Model
    metrics: ModelMetrics
    """The model's metrics."""
    ticket: Ticket
    choice: Choice | None
    """Choice whose replica answered; None without an answer, or with several replicas' parts."""
    replica_id: str
    """Replica that was asked last; empty when none was."""
    status: int
    usage: Usage | None
    """Token counts, if the engine told them."""
    sent_bytes: int
    """Bytes of the answer's body that went to the client."""
    received: float
    first_byte_at: float
    """Time of the answer's first byte; 0 without one."""
    ended_at: float

    @property
    def seconds(self) -> float:
        """Seconds from the request to the end of its answer."""
        return self.ended_at - self.received

    @property
    def first_byte(self) -> float:
        """Seconds from the request to the first byte of its answer; 0 without one."""
        return self.first_byte_at - self.received if self.first_byte_at else 0.0
