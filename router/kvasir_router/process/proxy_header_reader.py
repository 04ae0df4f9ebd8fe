"""Reads a PROXY header from a socket, and nothing of what follows: that is TLS's or HTTP's."""

import asyncio
import socket

from kvasir_router.wire.forwarding.proxy_header import ProxyHeader, ProxyHeaderError

_LOOK_BYTES = 4096


async def read_proxy_header(sock: socket.socket) -> str:
    """Return the client's address that the header has; empty where it has none. Raises
    ProxyHeaderError or OSError."""
    header = ProxyHeader()
    while not header.complete:
        await _readable(sock)
        try:
            seen = sock.recv(_LOOK_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        if not seen:
            raise ProxyHeaderError("closed")
        size = header.feed(seen)
        sock.recv(size)  # what was seen is there
    return header.client


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, _done, ready)
    try:
        await ready
    finally:
        loop.remove_reader(sock)


def _done(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
