"""A listener for TLS clients whose handshakes are counted and limited in time."""

import asyncio
import socket
import ssl

import structlog

from kvasir_router.proxy.client.connection import ClientConnection
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.tasks import SupervisedTasks

_PAUSE_SECONDS = 0.5
"""After an accept that failed, as when there are no descriptors left."""

_log = structlog.get_logger("kvasir_router.clients")


class TlsListener:
    """Accept connections on `sock`, from now until `close`.

    asyncio's own server tells of a connection only when its handshake is complete, so that those
    that never complete would be without a bound.
    """

    def __init__(
        self, gateway: Gateway, context: ssl.SSLContext, sock: socket.socket, tasks: SupervisedTasks
    ) -> None:
        self._gateway = gateway
        self._context = context
        self._sock = sock
        self._tasks = tasks
        self._accepting = tasks.keep("accept", self._accept, required=True)

    def close(self) -> None:
        """Accept no more; handshakes under way go on."""
        self._accepting.cancel()
        self._sock.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._sock)
            except OSError as error:
                _log.warning("no connection can be accepted", error=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if self._gateway.clients.handshake_began():
                self._tasks.run("handshake", self._shake_hands(client))
            else:
                client.close()

    async def _shake_hands(self, client: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: ClientConnection(self._gateway),
                client,
                ssl=self._context,
                ssl_handshake_timeout=self._gateway.settings.timeouts.handshake,
            )
        except OSError as error:  # its own, TLS's, or the time's
            _log.debug("no TLS handshake", error=str(error))
        finally:
            self._gateway.clients.handshake_ended()
