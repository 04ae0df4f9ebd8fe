"""The admin port's server, in the router's own loop."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from kvasir_router.admin.audit_log import AuditLog
from kvasir_router.admin.routes import make_admin_app
from kvasir_router.admin.statistics import Statistics
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.spend.spend_ledger import SpendLedger
from kvasir_router.tasks import SupervisedTasks

_TICK_SECONDS = 0.1
"""At most, between two steps of uvicorn's loop, or of the wait behind its end."""


class AdminServer:
    """uvicorn on the admin port, started again on the same socket when it fails."""

    def __init__(
        self,
        gateway: Gateway,
        statistics: Statistics,
        spend: SpendLedger | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        keyring = gateway.admission.keyring
        if audit is not None and keyring is not None:
            keyring.changed = audit.keys_changed
        self._app = make_admin_app(gateway, statistics, spend, audit)
        self._server: uvicorn.Server | None = None
        self._sock: socket.socket | None = None
        self._stopping = False
        self._stopped = asyncio.Event()

    def start(self, sock: socket.socket, tasks: SupervisedTasks) -> None:
        """Serve on a bound socket, which `stop` closes, as one of `tasks`."""
        self._sock = sock
        tasks.keep("admin port", self._run, every=_TICK_SECONDS)

    async def stop(self) -> None:
        """Answer what has been asked, and no more. `tasks` are still to be stopped."""
        if self._sock is None:
            return
        self._stopping = True
        if self._server is not None:
            self._server.should_exit = True
        await self._stopped.wait()
        self._sock.close()

    async def _run(self) -> None:
        if self._sock is not None and not self._stopping:
            await self._serve(self._sock)
        if self._stopping:
            self._stopped.set()
        while self._stopping:  # noqa: ASYNC110 - one that takes no steps would count as hung
            await asyncio.sleep(_TICK_SECONDS)

    async def _serve(self, sock: socket.socket) -> None:
        """Serve on a copy of the socket: uvicorn closes what it is given."""
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # uvicorn's own list of whom to believe is not this router's
        )
        self._server = server = _Server(config)
        with sock.dup() as copy:
            try:
                await server.serve(sockets=[copy])
            finally:
                self._server = None
                for listener in getattr(server, "servers", ()):  # set once it listens
                    listener.close()


class _Server(uvicorn.Server):
    """Signals stay the router's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
