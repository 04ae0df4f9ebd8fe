"""What routers talk to beside HTTP: gRPC in the first API process, prompt reports from all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from kvasir_engine.core.channels import Channels
from kvasir_engine.core.client import EngineDeadError
from kvasir_engine.server.reports.relay import ReportHub, ReportRelay
from kvasir_engine.server.reports.watch_page import WatchPage
from kvasir_engine.server.rpc.start import start_grpc
from kvasir_engine.server.state import ServerState

GRACE_SECONDS = 1.0


@contextlib.asynccontextmanager
async def router_interfaces(
    state: ServerState, channels: Channels, *, grpc_port: int, index: int
) -> AsyncIterator[None]:
    """Open those of API process `index` once the core serves, for as long as the block lasts."""
    run = _relay_reports(state, channels) if index else _serve_grpc(state, channels, grpc_port)
    task = asyncio.create_task(run)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, EngineDeadError):
            await task


async def _serve_grpc(state: ServerState, channels: Channels, port: int) -> None:
    server = await start_grpc(state, port, WatchPage(channels.watch).watch)
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
