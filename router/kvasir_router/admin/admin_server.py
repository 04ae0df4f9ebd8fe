"""The admin port's server, in the router's own loop."""

import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from kvasir_router.admin.routes import make_admin_app
from kvasir_router.admin.statistics import Statistics
from kvasir_router.proxy.gateway import Gateway


class AdminServer(uvicorn.Server):
    """uvicorn in the router's loop; signals stay the router's."""

    def __init__(self, gateway: Gateway, statistics: Statistics) -> None:
        super().__init__(
            uvicorn.Config(
                make_admin_app(gateway, statistics),
                log_config=None,
                access_log=False,
                lifespan="off",
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_on(self, sock: socket.socket) -> None:
        """Serve until `should_exit` is set."""
        await self.serve(sockets=[sock])
