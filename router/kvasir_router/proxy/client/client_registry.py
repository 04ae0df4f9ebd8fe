"""The client connections of a process: how many there may be, their deadlines, their end."""

import asyncio
import time

from kvasir_router.proxy.client_response import Client
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.telemetry.router_metrics import Metrics
from kvasir_router.wire import responses

SWEEP_SECONDS = 0.5
"""Between two looks at the deadlines of all connections."""

# For the ends of cut answers to be sent.
_LAST_WORDS_SECONDS = 0.1


class RegisteredClient(Client):
    """Connection of a client, as the registry needs it."""

    deadline: float
    """Loop time at which `expire` is called."""

    def expire(self) -> None:
        """End what has passed its deadline."""

    def close_if_idle(self, seconds: float) -> None:
        """Close it if it has been idle for so long."""

    def stop(self) -> None:
        """End what runs, and close: the router is about to exit."""


class ClientRegistry:
    """The connections that are open, and the TLS handshakes under way."""

    def __init__(
        self, max_connections: int, drain_idle: float, metrics: Metrics, tasks: SupervisedTasks
    ) -> None:
        """`drain_idle`: seconds without a request after which a drain closes a connection."""
        self._max_connections = max_connections
        self._drain_idle = drain_idle
        self._metrics = metrics
        self._tasks = tasks
        self.connections: set[RegisteredClient] = set()
        self.handshakes = 0
        """TLS handshakes under way."""
        metrics.connections = lambda: len(self.connections) + self.handshakes
        self._full = responses.error(
            503, "The router has all the connections it may.", "overloaded", retry_after=1
        )

    def connected(self, client: RegisteredClient) -> responses.Answer | None:
        """Register a connection; return a refusal when there are too many."""
        self.connections.add(client)
        if len(self.connections) <= self._max_connections:
            return None
        self._metrics.refused_connections += 1
        return self._full

    def handshake_began(self) -> bool:
        """Count a TLS handshake as a connection, until `handshake_ended`; return False when there
        are too many of both."""
        if len(self.connections) + self.handshakes >= self._max_connections:
            self._metrics.refused_connections += 1
            return False
        self.handshakes += 1
        return True

    def handshake_ended(self) -> None:
        """Count it no more: it is a connection now, or nothing."""
        self.handshakes -= 1

    def disconnected(self, client: RegisteredClient) -> None:
        """Remove a connection."""
        self.connections.discard(client)

    async def sweep(self) -> None:
        """Enforce deadlines, forever: one look at all connections costs less than a timer each."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            for client in [client for client in self.connections if client.deadline < now]:
                try:
                    client.expire()
                except Exception as error:
                    self._tasks.defect("deadline", error)
                    client.abort(reset=True)

    async def drain(self, timeout: float) -> None:
        """Wait until the connections are closed, at most `timeout` seconds; then end them.

        Each answer tells its client to close. A connection without one, because it is idle or its
        answer began before, may be used at any moment: only a quiet time tells that it will not be.
        """
        until = time.monotonic() + timeout
        while self.connections and time.monotonic() < until:
            for client in list(self.connections):
                client.close_if_idle(self._drain_idle)
            await asyncio.sleep(0.02)
        for client in list(self.connections):
            client.stop()
        if self.connections:
            await asyncio.sleep(_LAST_WORDS_SECONDS)
        for client in list(self.connections):
            client.abort()
