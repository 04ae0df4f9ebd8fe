"""A router process's life: read the configuration, listen, serve, drain, stop."""

import asyncio
import gc
import signal
import socket
import sys
from functools import partial

import structlog

from kvasir_router.admin.server import AdminServer
from kvasir_router.admission.collector import AdmissionCollector
from kvasir_router.discovery.base import ReplicaSpec, Snapshot, Source
from kvasir_router.discovery.file import FileSource
from kvasir_router.feeds.collector import FeedCollector
from kvasir_router.feeds.feeds import Feeds
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.health import HealthMonitor
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Replica
from kvasir_router.index.collector import IndexCollector
from kvasir_router.logs import AccessLog
from kvasir_router.metrics import Metrics
from kvasir_router.policy.registry import make_policy
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.proxy.pool import ConnectionPool
from kvasir_router.proxy.protocol import ClientConnection
from kvasir_router.settings import RouterSettings
from kvasir_router.tls import ServerTls, client_context

_log = structlog.get_logger("kvasir_router")

_BACKLOG = 4096

# Between the last moment of accepting and closing the listener, so that connections which wait in
# its backlog are taken and not reset.
_BACKLOG_SECONDS = 0.05


class RouterServer:
    """One process's router. `start`, then `stop`; `serve` does both around a signal."""

    def __init__(self, settings: RouterSettings) -> None:
        self.settings = settings
        self.fleet = Fleet(
            partial(make_policy, settings.policy, settings.policy_options),
            self._make_pool,
            settings.max_in_flight,
            settings.engine_queue,
        )
        self.fleet.policy_options = settings.policy_options
        self.metrics = Metrics(self.fleet)
        self._access_log: AccessLog | None = None
        if settings.access_log:
            self._access_log = AccessLog(sys.stdout.buffer, self.metrics.log_line_dropped)
        self.gateway = Gateway(settings, self.fleet, self.metrics, self._access_log)
        self._health = HealthMonitor(settings.probing, self.gateway.fleet_lines)
        self._feeds = Feeds(
            settings.feeding,
            settings.fleet_secret,
            self.gateway.fleet_lines,
            suspect=self._health.suspect,
        )
        self.fleet.came = self._came
        self.fleet.went = self._went
        self.fleet.emptied = self._feeds.emptied
        self.fleet.policy_changed = self._feeds.policy_changed
        self._source: Source = FileSource(settings.config, self.metrics.discovery_reported)
        self.fleet.serving = self._source.confirm
        self.fleet.room = self.gateway.line.room
        self.metrics.register(AdmissionCollector(self.gateway))
        self.metrics.register(FeedCollector(self.fleet))
        self.metrics.register(IndexCollector(self.fleet))
        tls = settings.tls
        self._tls = ServerTls(tls.cert, tls.key) if tls.cert and tls.key else None
        self._replica_tls = client_context(tls.replica_ca)
        self._tasks: list[asyncio.Task[None]] = []
        self._admin_task: asyncio.Task[None] | None = None
        self._listener: asyncio.Server | None = None
        self._admin = AdminServer(self.gateway)

    async def start(self, sock: socket.socket, admin_sock: socket.socket) -> None:
        """Listen on both sockets. Raises DiscoveryError or YamlFileError when the configuration
        or the key file is refused."""
        keyring = self.gateway.admission.keyring
        if keyring is not None:
            await keyring.load()
            self._tasks.append(asyncio.create_task(keyring.follow()))
        self._apply(await self._source.load())
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: ClientConnection(self.gateway),
            sock=sock,
            backlog=_BACKLOG,
            ssl=self._tls.context if self._tls else None,
        )
        if self._tls is not None:
            self._tasks.append(asyncio.create_task(self._tls.follow()))
        self._tasks += [
            asyncio.create_task(self._follow()),
            asyncio.create_task(self.gateway.sweep()),
            asyncio.create_task(self.gateway.line.watch()),
            asyncio.create_task(self.gateway.sample()),
        ]
        self._admin_task = asyncio.create_task(self._admin.run_on(admin_sock))
        scheme = "http" if self._tls is None else "https"
        _log.info("listening", url=_url(sock, scheme), admin_url=_url(admin_sock))

    async def stop(self) -> None:
        """Not ready at once, but accepting for the pre-stop delay; then what runs may end."""
        settings = self.settings
        self.gateway.stopping = True
        _log.info("stopping", drain_timeout=settings.drain_timeout)
        await asyncio.sleep(settings.pre_stop_delay + _BACKLOG_SECONDS)
        if self._listener is not None:
            self._listener.close()
        await self.gateway.drain(settings.drain_timeout)
        await self._health.stop()
        await self._feeds.stop()
        self._admin.should_exit = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._admin_task is not None:
            await self._admin_task
        self.fleet.apply(())
        if self._access_log is not None:
            self._access_log.close()
        if self.gateway.tracer is not None:
            await asyncio.to_thread(self.gateway.tracer.close)
        _log.info("stopped")

    async def _follow(self) -> None:
        async for snapshot in self._source.watch():
            self._apply(snapshot)

    def _apply(self, snapshot: Snapshot) -> None:
        self.fleet.apply(snapshot)
        self.gateway.keep_models()

    def _came(self, model: Model, replica: Replica) -> None:
        self._health.watch(model, replica)
        self._feeds.watch(model, replica)

    def _went(self, model: Model, replica: Replica) -> None:
        self._health.forget(model, replica)
        self._feeds.forget(model, replica)

    def _make_pool(self, spec: ReplicaSpec) -> ConnectionPool:
        timeouts = self.settings.timeouts
        return ConnectionPool(
            spec.host,
            spec.port,
            connect_timeout=timeouts.connect,
            idle_timeout=timeouts.upstream_idle,
            tls=self._replica_tls if spec.tls else None,
        )


async def serve(settings: RouterSettings) -> None:
    """Run until SIGTERM or SIGINT, then drain; a second signal ends the drain.

    Raises OSError when a port is taken, DiscoveryError when the configuration is refused.
    """
    with (
        listen(settings.host, settings.port, "--port") as sock,
        listen(settings.host, settings.admin_port, "--admin-port") as admin_sock,
    ):
        server = RouterServer(settings)
        stop = _stop_signals()
        await server.start(sock, admin_sock)
        gc.collect()
        gc.freeze()  # what is alive now stays; collecting it again and again costs latency
        await stop.get()
        stopping = asyncio.create_task(server.stop())
        second = asyncio.create_task(stop.get())
        await asyncio.wait({stopping, second}, return_when=asyncio.FIRST_COMPLETED)
        second.cancel()
        stopping.cancel()


def listen(host: str, port: int, option: str) -> socket.socket:
    """A bound socket. Raises OSError, naming the address and the option to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno,
            f"cannot listen on {host}:{port}: {error.strerror}; see --host and {option}",
        ) from None
    sock.setblocking(False)
    return sock


def _stop_signals() -> asyncio.Queue[int]:
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    return signals


def _url(sock: socket.socket, scheme: str = "http") -> str:
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
