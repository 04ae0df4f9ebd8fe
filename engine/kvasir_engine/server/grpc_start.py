"""Starts the gRPC server once the core has said how large everything is."""

from __future__ import annotations

from typing import Any

from kvasir_engine.server.api_config import ApiConfig
from kvasir_engine.server.auth import Keyring
from kvasir_engine.server.grpc_server import GrpcServer
from kvasir_engine.server.grpc_service import EngineService
from kvasir_engine.server.prompt_reports import PromptReporter
from kvasir_engine.server.state import ServerState


async def start_grpc(app: Any, config: ApiConfig) -> GrpcServer:
    """Listen on `config.grpc_port` beside the HTTP application `app`."""
    state: ServerState = app.state.server
    info = await state.client.wait_ready()
    settings = config.server
    state.reporter = PromptReporter(state.model.tokenizer, info.block_size)
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
