"""The connections to one replica."""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from math import inf

from kvasir_router.wire.upstream import ResponseHead, UpstreamConnection


class ConnectionPool:
    """Open connections to `host`:`port`, the most recently used first.

    The number in use is bounded by the replica's requests in flight; at most `max_idle` wait.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect_timeout: float,
        idle_timeout: float,
        max_idle: int = 512,
        tls: ssl.SSLContext | None = None,
        limit: Callable[[float], AbstractAsyncContextManager[object]] = asyncio.timeout,
        server_name: str | None = None,
        max_age: float = inf,
    ) -> None:
        """`limit(seconds)`: the time limit of a connect. `server_name`: that of the certificate, if
        it is not the host. `max_age`: seconds after which a connection is used no more, so that a
        name that has come to mean another address is believed."""
        self.host = host
        self.port = port
        self.authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._max_idle = max_idle
        self._tls = tls
        self._server_name = server_name if tls is not None else None
        self._max_age = max_age
        self._limit = limit
        self._idle: deque[UpstreamConnection] = deque()
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def take_idle(self) -> UpstreamConnection | None:
        """An idle connection that is still open and not so old that the replica may close it."""
        oldest = self._loop.time() - self._idle_timeout
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since < oldest:
                self._idle.append(connection)
                self._close_idle()
                return None
            if connection.usable:
                return connection
        return None

    async def connect(self) -> UpstreamConnection:
        """Raises OSError or TimeoutError. Names are resolved off the loop."""
        async with self._limit(self._connect_timeout):
            try:
                transport, connection = await self._loop.create_connection(
                    lambda: UpstreamConnection(self),
                    self.host,
                    self.port,
                    ssl=self._tls,
                    server_hostname=self._server_name,
                )
            except UnicodeError as error:
                raise OSError(f"{self.host!r} is not a host name: {error}") from None
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.used_until = self._loop.time() + self._max_age
        return connection

    def release(self, connection: UpstreamConnection) -> None:
        connection.idle_since = self._loop.time()
        if connection.idle_since > connection.used_until:
            connection.abort()
            return
        self._idle.append(connection)
        if self._closed:
            self._close_idle()
        elif len(self._idle) > self._max_idle:
            self._idle.popleft().abort()

    def forget(self, connection: UpstreamConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close what is idle; what is in use is closed as it is released."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, deque()
        for connection in idle:
            connection.abort()


class _Collector:
    """Collect one small answer."""

    def __init__(self, limit: int) -> None:
        self.result: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._limit = limit
        self._status = 0
        self._body = b""

    def response_started(self, head: ResponseHead) -> None:
        self._status = head.status

    def response_data(self, data: bytes, last: bool) -> None:
        self._body += data
        if self.result.done():
            return
        if len(self._body) > self._limit:
            self.result.set_exception(ConnectionError("the answer is too large"))
        elif last:
            self.result.set_result((self._status, self._body))

    def response_broken(self, reason: str) -> None:
        if not self.result.done():
            self.result.set_exception(ConnectionError(reason))

    def response_failed(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


async def fetch(
    pool: ConnectionPool,
    target: str,
    lines: bytes = b"",
    limit: int = 1 << 20,
    host: bytes = b"",
) -> tuple[int, bytes]:
    """GET over a connection of its own (a probe must also see that the replica accepts); `lines`:
    further headers; `host`: the Host header, if it is not the pool's authority.

    Returns status and body; raises OSError (also for a broken or too large answer) or TimeoutError
    for the connect; the caller bounds the whole.
    """
    connection = await pool.connect()
    connection.reusable = False  # also if the replica does not close: it is aborted below
    try:
        collector = _Collector(limit)
        head = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n%b\r\n"
        authority = host or pool.authority.encode()
        connection.send(collector, head % (target.encode(), authority, lines), b"")
        return await collector.result
    finally:
        connection.abort()
