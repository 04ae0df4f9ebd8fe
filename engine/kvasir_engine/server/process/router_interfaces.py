"""Interfaces for routers beside HTTP: gRPC in the first API process, prompt reports from all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from kvasir.logs import get_logger
from kvasir_engine.core.channels import Channels
from kvasir_engine.core.client import EngineDeadError
from kvasir_engine.server.reports.report_relay import ReportHub, ReportRelay
from kvasir_engine.server.reports.watch_page import WatchPage
from kvasir_engine.server.rpc.start_grpc import start_grpc
from kvasir_engine.server.server_state import ServerState

log = get_logger(__name__)

GRACE_SECONDS = 1.0


@contextlib.asynccontextmanager
async def router_interfaces(
    state: ServerState, channels: Channels, *, grpc_port: int, index: int
) -> AsyncIterator[asyncio.Task[None]]:
    """Open those of API process `index` once the core serves, for as long as the block lasts.

    The task ends within the block only when they cannot be had: the core died, the port is taken.
    """
    run = _relay_reports(state, channels) if index else _serve_grpc(state, channels, grpc_port)
    task = asyncio.create_task(run)
    try:
        yield task
    finally:
        task.cancel()
        try:
            await task
        except OSError as error:
            log.error("cannot serve routers", reason=str(error))
        except (asyncio.CancelledError, EngineDeadError):
            pass


async def _serve_grpc(state: ServerState, channels: Channels, port: int) -> None:
    page = WatchPage(channels.watch)
    # Whoever watched a process that was here before has lost it.
    page.watch(False)
    server = await start_grpc(state, port, page.watch)
    reporter = state.prompt_reporter
    hub = ReportHub(channels.reports, reporter)
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop(grace=GRACE_SECONDS)
        hub.close()
        reporter.close()


async def _relay_reports(state: ServerState, channels: Channels) -> None:
    info = await state.client.wait_ready()
    reporter = state.make_reporter(info)
    relay = ReportRelay(channels.reports, WatchPage(channels.watch), reporter)
    try:
        await asyncio.Event().wait()
    finally:
        await relay.close()
        reporter.close()
