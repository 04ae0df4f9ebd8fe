"""A router of one process: read the configuration, listen, serve, drain, stop."""

import asyncio
import signal
import socket
import sys

import structlog

from kvasir_router import compiled
from kvasir_router.admin.admin_server import AdminServer
from kvasir_router.admin.audit_log import open_audit
from kvasir_router.admin.statistics import Statistics
from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.process import malloc_settings
from kvasir_router.process.client_port import ClientPort, listen, listen_for_operators, url_of
from kvasir_router.process.components import RouterComponents
from kvasir_router.process.fleet_watch import FleetWatch
from kvasir_router.process.picker_port import PickerPort
from kvasir_router.scaling.signals import SAMPLE_SECONDS
from kvasir_router.tasks import SupervisedTasks

_log = structlog.get_logger("kvasir_router")


class RouterServer(RouterComponents):
    """Router of one process. `start`, then `stop`; `serve` does both around a signal."""

    def __init__(self, settings: RouterSettings) -> None:
        super().__init__(settings)
        self._watch = FleetWatch(self)
        self._port = ClientPort(self.gateway, settings.tls)
        self.picker = PickerPort(self.gateway)
        self._statistics = Statistics(self.gateway)
        self._audit = audit = open_audit(settings.audit_log, sys.stdout.buffer, self.metrics)
        self._admin = AdminServer(self.gateway, self._statistics, self.spend, audit)

    async def start(self, sock: socket.socket, admin_sock: socket.socket) -> None:
        """Listen on both sockets. Raises DiscoveryError or YamlFileError when the configuration
        or the key file is refused."""
        self.gateway.tasks.watch_loop()
        await self.load_keys()
        await self._watch.start()
        url = await self._port.open(sock)
        await self.picker.open(self.settings.picker.port, shared=False)
        self.gateway.tasks.keep("scaling signals", self._statistics.sample, every=SAMPLE_SECONDS)
        self.gateway.tasks.keep("free memory", malloc_settings.give_back_freed)
        self._admin.start(admin_sock, self.gateway.tasks)
        _log.info("listening", url=url, admin_url=url_of(admin_sock), compiled=compiled.in_use())

    async def stop(self) -> None:
        """Stop: not ready at once, but accepting for the pre-stop delay; then what runs may end."""
        settings = self.settings
        self.gateway.stopping = True
        _log.info("stopping", drain_timeout=settings.drain_timeout)
        await asyncio.sleep(settings.pre_stop_delay)
        await self._port.close()
        await self.picker.close()
        await self.gateway.drain(settings.drain_timeout)
        await self.picker.stop()
        await self._watch.stop()
        await self._port.stop()
        await self._admin.stop()
        if self._audit is not None:
            await asyncio.to_thread(self._audit.close)
        await self.close()
        _log.info("stopped")


async def serve(settings: RouterSettings) -> None:
    """Run until SIGTERM or SIGINT, then drain; a second signal ends the drain.

    Raises ListenError when a port is taken, DiscoveryError when the configuration is refused.
    """
    with (
        listen(settings.host, settings.port, "--port") as sock,
        listen_for_operators(settings) as admin_sock,
    ):
        server = RouterServer(settings)
        stop = _stop_signals()
        await server.start(sock, admin_sock)
        malloc_settings.settle()
        await stop.get()
        tasks = SupervisedTasks()
        stopping = tasks.run("stop", server.stop())
        second = tasks.run("signal", stop.get())
        await asyncio.wait({stopping, second}, return_when=asyncio.FIRST_COMPLETED)
        second.cancel()
        stopping.cancel()


def _stop_signals() -> asyncio.Queue[int]:
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    return signals
