"""API process: `python -m kvasir_engine.server.process.api RUNTIME_DIR INDEX PARENT_PID`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from starlette.types import ASGIApp

from kvasir.logs import configure_logging, get_logger
from kvasir_engine.core.channels import Channels
from kvasir_engine.core.client import EngineDeadError
from kvasir_engine.core.zmq_client import ZmqCoreClient
from kvasir_engine.parent_death import die_with_parent
from kvasir_engine.server.gpu_faults.fault_page import FaultPage
from kvasir_engine.server.lifecycle import Lifecycle
from kvasir_engine.server.process.api_config import ApiConfig, read_api_config
from kvasir_engine.server.process.garbage_collection import collect_seldom, collect_when_idle
from kvasir_engine.server.process.peer_readiness import PeerReadiness

if TYPE_CHECKING:
    from kvasir_engine.server.server_state import ServerState

log = get_logger(__name__)

BACKLOG = 4096
FLUSH_SECONDS = 1.0
"""Seconds that open responses get to send their error after a failure."""


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers: SIGTERM drains before the listener closes."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `_serve`."""
        yield


def main() -> int:
    """Exit status: 0 after a drain, 1 when the core died or a port was not to be had."""
    gc.disable()  # until `gc.freeze`: nothing that is imported or made before is garbage
    channels, index, parent = Channels(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    die_with_parent(parent)
    config = read_api_config(channels)
    configure_logging("api", level=config.log_level)
    # Read by prometheus_client when it is imported, so set before the application is.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(channels.metrics)
    return uvloop.run(_serve(channels, config, index))


async def _serve(channels: Channels, config: ApiConfig, index: int) -> int:
    from kvasir_engine.server.http.app import create_app
    from kvasir_engine.server.served_model import load_served_model

    client = ZmqCoreClient(channels, index)
    app = create_app(client, load_served_model(config.server), config.server)
    state: ServerState = app.state.server
    state.lifecycle.peers = PeerReadiness(
        channels.directory, index, channels.read_config().num_clients
    )
    if channels.fault_page.exists():
        state.lifecycle.fault = FaultPage(channels.fault_page)
    collect_seldom()
    if client.serving:
        # In the place of one that has ended: the port's connections go to the others until then.
        with contextlib.suppress(EngineDeadError):
            await client.wait_ready()
    server = make_server(app, config.server.tls)
    with listen(config.server.host, config.server.port) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        announcing = asyncio.create_task(_announce(client, config, index))
        collecting = asyncio.create_task(collect_when_idle(state.lifecycle))
        async with _for_routers(state, config, channels, index) as opened:
            failed = await _until_stopped(client, state.lifecycle, {serving, *opened}, config)
        announcing.cancel()
        collecting.cancel()
        server.should_exit = True
        await serving
    client.close()
    return 1 if failed else 0


def make_server(app: ASGIApp, tls: tuple[Path, Path] | None = None) -> Server:
    """The HTTP server of `app`, over `tls` = (chain, key) if given; our own log says what uvicorn's
    would."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return Server(
        uvicorn.Config(
            app,
            loop="none",
            http="httptools",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
            ssl_certfile=None if tls is None else tls[0],
            ssl_keyfile=None if tls is None else tls[1],
        )
    )


async def _announce(client: ZmqCoreClient, config: ApiConfig, index: int) -> None:
    """Log one line when the model serves, with what its start took."""
    with contextlib.suppress(EngineDeadError):
        info = await client.wait_ready()
        if index == 0:
            log.info(
                "serving",
                models=list(config.server.names),
                url=f"{'http' if config.server.tls is None else 'https'}://{config.server.host}:{config.server.port}",
                max_model_len=info.max_model_len,
                kv_blocks=info.num_blocks,
                seconds=info.startup_seconds,
            )


async def _until_stopped(
    client: ZmqCoreClient,
    lifecycle: Lifecycle,
    servers: set[asyncio.Task[None]],
    config: ApiConfig,
) -> bool:
    """Wait for a signal and drain, or for the end of the core or of a server. True when something
    ended that was not asked to."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    died = asyncio.create_task(client.wait_dead())
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait({died, stopping, *servers}, return_when=asyncio.FIRST_COMPLETED)
    asked = stopping.done() and not died.done()
    if not asked:
        await asyncio.sleep(FLUSH_SECONDS)
    elif lifecycle.info is not None:  # while the core still loads there is nothing to finish
        await lifecycle.drain(_drain_seconds(lifecycle, config))
    failed = died.done() or not asked
    died.cancel()
    stopping.cancel()
    return failed


def _drain_seconds(lifecycle: Lifecycle, config: ApiConfig) -> float:
    seconds = config.server.drain_timeout
    return min(seconds, config.server.gpu_fault_timeout) if lifecycle.has_fault else seconds


def listen(host: str, port: int) -> socket.socket:
    """A listening socket of this process's own: the kernel spreads connections over them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


@contextlib.asynccontextmanager
async def _for_routers(
    state: ServerState, config: ApiConfig, channels: Channels, index: int
) -> AsyncIterator[set[asyncio.Task[None]]]:
    """gRPC and prompt reports, where --grpc-port asks for them."""
    if config.grpc_port is None:
        yield set()
        return
    # Imported here: grpc costs a process without it half a second.
    from kvasir_engine.server.process.router_interfaces import router_interfaces

    port = config.grpc_port
    async with router_interfaces(state, channels, grpc_port=port, index=index) as task:
        yield {task}


if __name__ == "__main__":
    sys.exit(main())
