"""What routers talk to beside HTTP: gRPC in the first API process, prompt reports from all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from kvasir_engine.core.channels import Channels
from kvasir_engine.core.client import EngineDeadError
from kvasir_engine.server.api_config import ApiConfig
from kvasir_engine.server.auth import Keyring
from kvasir_engine.server.grpc_server import GrpcServer
from kvasir_engine.server.grpc_service import EngineService
from kvasir_engine.server.prompt_reports import PromptReporter
from kvasir_engine.server.report_relay import ReportHub, ReportRelay
from kvasir_engine.server.state import ServerState
from kvasir_engine.server.watch_page import WatchPage

GRACE_SECONDS = 1.0


@contextlib.asynccontextmanager
async def router_interfaces(
    app: Any, config: ApiConfig, channels: Channels, index: int
) -> AsyncIterator[None]:
    """Open them once the core serves, for as long as the block lasts."""
    state: ServerState = app.state.server
    run = _serve_grpc if index == 0 else _relay_reports
    task = asyncio.create_task(run(state, config, channels))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, EngineDeadError):
            await task


async def _serve_grpc(state: ServerState, config: ApiConfig, channels: Channels) -> None:
    server = await start_grpc(state, config, WatchPage(channels.watch).watch)
    hub = ReportHub(channels.reports, state.prompt_reporter)
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop(grace=GRACE_SECONDS)
        hub.close()
        state.prompt_reporter.close()


async def _relay_reports(state: ServerState, _config: ApiConfig, channels: Channels) -> None:
    info = await state.client.wait_ready()
    state.reporter = PromptReporter(state.model.tokenizer, info.block_size)
    relay = ReportRelay(channels.reports, WatchPage(channels.watch), state.reporter)
    try:
        await asyncio.Event().wait()
    finally:
        await relay.close()
        state.reporter.close()


async def start_grpc(
    state: ServerState, config: ApiConfig, on_watch: Callable[[bool], None] = lambda watched: None
) -> GrpcServer:
    """Listen on `config.grpc_port` once the core serves. Raises OSError and EngineDeadError.

    `on_watch` is told when the first watcher of prompt reports comes and the last one leaves.
    """
    info, settings = await state.client.wait_ready(), config.server
    state.reporter = PromptReporter(state.model.tokenizer, info.block_size, on_watch)
    service = EngineService(
        state.client,
        state.model.request_maker(info, settings.max_logprobs),
        state.lifecycle,
        state.metrics,
        state.reporter,
        max_model_len=info.max_model_len,
    )
    server = GrpcServer(
        service,
        state.lifecycle,
        Keyring(settings.api_keys, settings.fleet_secret),
        fleet_only=settings.fleet_secret is not None,
        host=settings.host,
        port=config.grpc_port or 0,
    )
    await server.start()
    return server
