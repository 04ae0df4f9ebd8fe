"""The client connections of a process: how many there may be, their deadlines, their end."""

import asyncio
import time
from collections import Counter

from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.proxy.client_response import Client
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.telemetry.router_metrics import Metrics
from kvasir_router.wire import responses
from kvasir_router.wire.forwarding.client_address import TrustedProxies

SWEEP_SECONDS = 0.5
"""Between two looks at the deadlines of all connections."""

# For the ends of cut answers to be sent.
_LAST_WORDS_SECONDS = 0.1


class RegisteredClient(Client):
    """Connection of a client, as the registry needs it."""

    deadline: float
    """Loop time at which `expire` is called."""
    address: str
    """Address of the connection's other end, or that of its PROXY header."""

    def expire(self) -> None:
        """End what has passed its deadline."""

    def close_if_idle(self, seconds: float) -> None:
        """Close it if it has been idle for so long."""

    def stop(self) -> None:
        """End what runs, and close: the router is about to exit."""


class ClientRegistry:
    """The connections that are open, and the TLS handshakes under way."""

    def __init__(self, settings: RouterSettings, metrics: Metrics, tasks: SupervisedTasks) -> None:
        self._max_connections = settings.max_connections
        self._drain_idle = settings.drain_idle
        """Seconds without a request after which a drain closes a connection."""
        self.proxies = TrustedProxies(settings.proxies.trusted)
        self._max_of_client = settings.proxies.client_connections
        self._of_client: Counter[str] = Counter()
        """Connections by address, where they are limited."""
        self._counted: set[RegisteredClient] = set()
        self._metrics = metrics
        self._tasks = tasks
        self.connections: set[RegisteredClient] = set()
        self.handshakes = 0
        """TLS handshakes under way."""
        metrics.connections = lambda: len(self.connections) + self.handshakes
        self._full = responses.error(
            503, "The router has all the connections it may.", "overloaded", retry_after=1
        )
        self._too_many = responses.error(
            429,
            f"An address may have {self._max_of_client} connections here; use fewer of them again.",
            "too_many_connections",
            retry_after=1,
        )

    def connected(self, client: RegisteredClient) -> responses.Answer | None:
        """Register a connection; return a refusal when there are too many."""
        self.connections.add(client)
        if len(self.connections) > self._max_connections:
            self._metrics.refused_connections += 1
            return self._full
        return self._too_many if self._max_of_client and self._is_one_more(client) else None

    def _is_one_more(self, client: RegisteredClient) -> bool:
        """Count a connection of its address; return whether that has too many."""
        if not client.address or self.proxies.trusts(client.address):
            return False
        self._counted.add(client)
        self._of_client[client.address] += 1
        if self._of_client[client.address] <= self._max_of_client:
            return False
        self._metrics.refused_connections += 1
        return True

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
        if client in self._counted:
            self._counted.discard(client)
            self._of_client[client.address] -= 1
            if not self._of_client[client.address]:
                del self._of_client[client.address]
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
