"""Numbers of a relayed request when it is over: for metrics, limits, signals, traces and log."""

from typing import Final

from kvasir_router.admission.ticket import Ticket
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model
from kvasir_router.telemetry.model_metrics import ModelMetrics
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import Usage


class Outcome:
    """End of one relayed request; never changes. Times are of the monotonic clock, in seconds.

    A class of its own rather than a NamedTuple: compiled, its fields cost no look-up by name.
    """

    def __init__(
        self,
        query: Query,
        model: Model,
        metrics: ModelMetrics,
        ticket: Ticket,
        choice: Choice | None,
        replica_id: str,
        status: int,
        usage: Usage | None,
        sent_bytes: int,
        received: float,
        first_byte_at: float,
        ended_at: float,
    ) -> None:
        self.query: Final = query
        self.model: Final = model
        self.metrics: Final = metrics
        """The model's metrics."""
        self.ticket: Final = ticket
        self.choice: Final = choice
        """Choice whose replica answered; None without an answer, or with parts of several."""
        self.replica_id: Final = replica_id
        """Replica that was asked last; empty when none was."""
        self.status: Final = status
        self.usage: Final = usage
        """Token counts, if the engine told them."""
        self.sent_bytes: Final = sent_bytes
        """Bytes of the answer's body that went to the client."""
        self.ended_at: Final = ended_at
        self.seconds: Final = ended_at - received
        """Seconds from the request to the end of its answer."""
        self.first_byte: Final = first_byte_at - received if first_byte_at else 0.0
        """Seconds from the request to the first byte of its answer; 0 without one."""
