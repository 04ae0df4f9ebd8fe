"""The endpoint picker's port of a process, if there is one: grpc is imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvasir_router.process.client_port import listen
from kvasir_router.proxy.gateway import Gateway

if TYPE_CHECKING:
    from kvasir_router.picker.picker_server import PickerServer


class PickerPort:
    """`open`, then `close` as the router stops, then `stop` when nothing is under way."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._server: PickerServer | None = None
        self.port = 0
        """Port that is listened on; 0 = none."""

    async def open(self, port: int | None, *, shared: bool) -> None:
        """Listen, if there is a `port`; `shared`: so that other processes may, too. Raises
        ListenError or TlsError."""
        if port is None:
            return
        from kvasir_router.picker.picker_server import PickerServer

        if not shared:
            # Of a port that is taken, gRPC says nothing
            host = self._gateway.settings.host
            listen(host, port, "--endpoint-picker-port").close()
        self._server = PickerServer(self._gateway)
        self.port = await self._server.start(port, shared=shared)

    async def close(self) -> None:
        """Take no more streams."""
        if self._server is not None:
            await self._server.close()

    async def stop(self) -> None:
        """End what is left."""
        if self._server is not None:
            await self._server.stop()
