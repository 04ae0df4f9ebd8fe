"""Interface of a client to the gateway, which admits its requests."""

from abc import abstractmethod

from kvasir_router.admission.ticket import Ticket
from kvasir_router.fleet.model import Model
from kvasir_router.proxy.client.client_registry import RegisteredClient
from kvasir_router.proxy.fallbacks import Fallbacks
from kvasir_router.proxy.relay import Relay
from kvasir_router.proxy.relay_services import RelayServices
from kvasir_router.telemetry.model_metrics import ModelMetrics
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query


class GatewayClient(RegisteredClient):
    """Connection of a client, as the gateway needs it. Whatever comes by it goes one way through
    keys, limits, shares and the choice of a replica; it alone knows how bytes are carried."""

    sees_answers = True
    """False if replicas' answers do not pass through the router, so that none can be kept."""

    def defect(self, request: Request) -> None:
        """End the request in progress: the router's own code raised for it."""

    def grown(self, size: int) -> None:
        """The body of the request in progress has become longer by so many bytes. Raises
        RequestError where there is no room for them."""

    @property
    @abstractmethod
    def gone(self) -> bool:
        """True when nobody is left to answer."""

    def carry(
        self,
        services: RelayServices,
        query: Query,
        model: Model,
        metrics: ModelMetrics,
        ticket: Ticket,
        fallbacks: Fallbacks | None,
        received: float,
    ) -> None:
        """Take the request in progress, which is admitted, to a replica of the model. `received`:
        when it came, by the monotonic clock; 0 = now."""
        self.relay(Relay(services, self, query, model, metrics, ticket, fallbacks, received))

    def relay(self, relay: Relay) -> None:
        """Let `relay` answer the request in progress."""
