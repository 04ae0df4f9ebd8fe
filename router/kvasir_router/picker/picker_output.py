"""Interface of what tells a gateway; apart from the modules that are compiled, since what
implements it is not one of them."""

from collections.abc import Sequence

from kvasir_router.fleet.replica import Replica
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query
from kvasir_router.wire.responses import Answer


class PickerOutput:
    """Receiver of what the gateway is to be told: one thing for each request, at most, and before
    that perhaps that it waits."""

    def told_endpoints(self, replicas: Sequence[Replica], query: Query, model: str) -> None:
        """Send the request, whose header and body may have been changed, to the first of the
        model's replicas that can be reached; they take the same body."""

    def told_wait(self, seconds: float) -> None:
        """Wait for so long: no replica may take the request now. May be told several times."""

    def told_answer(self, answer: Answer, request: Request | None) -> None:
        """Answer the client with this; `request` is None if there is no valid one."""

    def told_end(self) -> None:
        """Expect nothing more: the router stops, or failed."""
