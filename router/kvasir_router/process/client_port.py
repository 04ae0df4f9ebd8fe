"""The clients' port of a process: bound, listened on, and closed without resetting anybody."""

import asyncio
import ctypes
import select
import socket
import struct
import time
from contextlib import suppress
from functools import partial

from kvasir_router.admission.request_queue import LOOK_SECONDS
from kvasir_router.file_watch import FOLLOW_SECONDS
from kvasir_router.options.router_settings import RouterSettings, Tls
from kvasir_router.process.handshake_listener import HandshakeListener
from kvasir_router.proxy.client.client_registry import SWEEP_SECONDS
from kvasir_router.proxy.client.connection import ClientConnection
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.wire.tls import ServerTls

_BACKLOG = 4096

# Between the last connection that may begin and the listener's end: those whose handshake is under
# way are completed, and taken out of the backlog.
_HANDSHAKE_SECONDS = 0.1
_BACKLOG_SECONDS = 2.0

_SO_ATTACH_FILTER = 26
# A classic BPF program over the TCP header: of segments with the flag SYN, keep no byte.
_WITHOUT_SYN = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # ldb [13]
        (0x45, 0, 1, 0x02),  # jset #SYN
        (0x06, 0, 0, 0),  # ret #0
        (0x06, 0, 0, 0x40000),  # ret #262144
    )
)


class ListenError(OSError):
    """An address that cannot be listened on; its `strerror` is a sentence with the option."""


class ClientPort:
    """Accept clients for a gateway. Raises TlsError for bad certificate files."""

    def __init__(self, gateway: Gateway, tls: Tls) -> None:
        self._gateway = gateway
        self._tls = ServerTls(tls.cert, tls.key) if tls.cert and tls.key else None
        self._tasks = gateway.tasks.child()
        self._sock: socket.socket | None = None
        self._server: asyncio.Server | HandshakeListener | None = None

    async def open(self, sock: socket.socket) -> str:
        """Accept connections on a bound socket, which is closed by `close`. Returns its URL."""
        self._sock = sock
        if self._gateway.responses is not None:
            await self._gateway.responses.store.open()
        proxies = self._gateway.settings.proxies.protocol
        if self._tls is None and not proxies:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: ClientConnection(self._gateway), sock=sock, backlog=_BACKLOG
            )
        else:
            sock.listen(_BACKLOG)
            context = None if self._tls is None else self._tls.context
            self._server = HandshakeListener(
                self._gateway, context, proxies, sock, self._tasks.child()
            )
        self._gateway.tokenizing.open(self._gateway.fleet.models.values())
        gateway, tasks = self._gateway, self._tasks
        tasks.keep("deadlines", gateway.clients.sweep, required=True, every=SWEEP_SECONDS)
        tasks.keep("queue", gateway.queue.watch, required=True, every=LOOK_SECONDS)
        if self._tls is not None:
            reported = partial(gateway.metrics.file_reported, "certificate")
            tasks.keep("certificate", partial(self._tls.follow, reported), every=FOLLOW_SECONDS)
        return url_of(sock, "http" if self._tls is None else "https")

    async def close(self) -> None:
        """Take every connection that has begun, then no more."""
        sock, self._sock = self._sock, None
        if sock is None or self._server is None:
            return
        turn_away(sock)
        await asyncio.sleep(_HANDSHAKE_SECONDS)
        until = time.monotonic() + _BACKLOG_SECONDS
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        while poller.poll(0) and time.monotonic() < until:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.005)
        self._server.close()

    def leave(self) -> None:
        """Take no more, when the socket goes on in another process."""
        if self._server is not None:
            self._sock = None
            self._server.close()

    async def stop(self) -> None:
        """Stop the port's tasks, when all clients have left."""
        await self._tasks.stop()


def listen(
    host: str, port: int, option: str, *, shared: bool = False, host_option: str = "--host"
) -> socket.socket:
    """A bound socket; `shared`: others of this user may bind the port too (SO_REUSEPORT). Raises
    ListenError, which names the options."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ListenError(
            error.errno,
            f"cannot listen on {host}:{port}: {error.strerror}; see {host_option} and {option}",
        ) from None
    sock.setblocking(False)
    return sock


def listen_for_operators(settings: RouterSettings) -> socket.socket:
    """The admin port's bound socket. Raises ListenError."""
    return listen(
        settings.admin_host, settings.admin_port, "--admin-port", host_option="--admin-host"
    )


def turn_away(sock: socket.socket) -> None:
    """Let no further connection begin; a client that tries does so again after a second. Without
    this one that came between the last accept and the close would be reset."""
    program = ctypes.create_string_buffer(_WITHOUT_SYN)
    size = len(_WITHOUT_SYN) // 8
    with suppress(OSError):  # where a sandbox forbids it, the window is microseconds
        sock.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", size, ctypes.addressof(program))
        )


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    """The address that it is bound to."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
