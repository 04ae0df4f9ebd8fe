"""A listener for clients who have something to say before their first request: a PROXY header, a
TLS handshake, or both. They are counted and limited in time."""

import asyncio
import socket
import ssl

import structlog

from kvasir_router.process.proxy_header_reader import read_proxy_header
from kvasir_router.proxy.client.connection import ClientConnection
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.wire.forwarding.client_address import Networks, contains, peer_of
from kvasir_router.wire.forwarding.proxy_header import ProxyHeaderError

_PAUSE_SECONDS = 0.5
"""After an accept that failed, as when there are no descriptors left."""

_log = structlog.get_logger("kvasir_router.clients")


class HandshakeListener:
    """Accept connections on `sock`, from now until `close`.

    asyncio's own server tells of a connection only when its handshake is complete, so that those
    that never complete would be without a bound.
    """

    def __init__(
        self,
        gateway: Gateway,
        context: ssl.SSLContext | None,
        proxies: Networks,
        sock: socket.socket,
        tasks: SupervisedTasks,
    ) -> None:
        """`context`: None without TLS; `proxies`: networks whose connections begin with a PROXY
        header."""
        self._gateway = gateway
        self._context = context
        self._proxies = proxies
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
        loop = asyncio.get_running_loop()
        until = loop.time() + self._gateway.settings.timeouts.handshake
        try:
            address = await self._address(client, until)
            await loop.connect_accepted_socket(
                lambda: ClientConnection(self._gateway, address),
                client,
                ssl=self._context,
                ssl_handshake_timeout=max(until - loop.time(), 0.01) if self._context else None,
            )
        except ProxyHeaderError as error:
            self._gateway.metrics.proxy_headers_refused[str(error)] += 1
            _log.debug("no PROXY header", reason=str(error))
        except OSError as error:  # its own, TLS's, or the time's
            _log.debug("no TLS handshake", error=str(error))
        finally:
            self._gateway.clients.handshake_ended()

    async def _address(self, client: socket.socket, until: float) -> str:
        """Return the client's address, by the header where one is to come by the loop time `until`.
        Raises ProxyHeaderError or OSError; the socket is closed then."""
        peer = peer_of(client)
        if not contains(self._proxies, peer):
            return peer
        try:
            async with asyncio.timeout_at(until):
                return await read_proxy_header(client) or peer
        except TimeoutError:
            client.close()
            raise ProxyHeaderError("timeout") from None
        except BaseException:
            client.close()
            raise
