"""A router with workers, from its settings: what its processes share, and their supervisor."""

import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.process.client_port import listen, listen_for_operators
from kvasir_router.workers.child import INDEX
from kvasir_router.workers.shared_memory.load_table import LoadTable
from kvasir_router.workers.shared_memory.shared_limits import SharedLimitTable
from kvasir_router.workers.shared_state import Shared
from kvasir_router.workers.supervisor import Slot, Supervisor

_BACKLOG = 4096


def supervise(settings: RouterSettings) -> int:
    """A whole router of `settings.workers` workers; returns its exit status.

    Raises ListenError when a port is taken.
    """
    with (
        _sockets(settings) as (listeners, admin_sock),
        _picker_port(settings) as port,
        _directory() as directory,
    ):
        settings = replace(settings, picker=replace(settings.picker, port=port))
        link_sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link_sock.bind(str(directory / "index.sock"))
        link_sock.listen(64)
        # As many again may be draining, and the index process has one
        load = LoadTable(2 * settings.workers + 3)
        shared = Shared(settings, directory, load, SharedLimitTable(), link_sock, admin_sock)
        slots = {number: Slot(sock) for number, sock in enumerate(listeners)}
        slots[INDEX] = Slot(admin_sock)
        for slot in slots.values():
            slot.start_at = time.monotonic()
        return Supervisor(shared, slots).run()


@contextmanager
def _sockets(settings: RouterSettings) -> Iterator[tuple[list[socket.socket], socket.socket]]:
    """One for each worker on the same port, and the admin port's.

    The port is tried alone first: with SO_REUSEPORT another router on it would go unnoticed.
    """
    listen(settings.host, settings.port, "--port").close()
    sockets: list[socket.socket] = []
    try:
        port = settings.port
        for _ in range(settings.workers):
            sockets.append(listen(settings.host, port, "--port", shared=True))
            port = sockets[0].getsockname()[1]
        admin_sock = listen_for_operators(settings)
        admin_sock.listen(_BACKLOG)
        sockets.append(admin_sock)
        yield sockets[:-1], admin_sock
    finally:
        for sock in sockets:
            sock.close()


@contextmanager
def _picker_port(settings: RouterSettings) -> Iterator[int | None]:
    """Keep the endpoint picker's port, on which each worker listens by itself."""
    host, port, option = settings.host, settings.picker.port, "--endpoint-picker-port"
    if port is None:
        yield None
        return
    listen(host, port, option).close()
    with listen(host, port, option, shared=True) as sock:
        yield sock.getsockname()[1]


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="kvasir-router-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
