"""Start the gRPC server of an API process."""

from __future__ import annotations

from collections.abc import Callable

from kvasir_engine.server.auth import Keyring
from kvasir_engine.server.rpc.engine_service import EngineService
from kvasir_engine.server.rpc.grpc_server import GrpcServer
from kvasir_engine.server.server_state import ServerState


async def start_grpc(
    state: ServerState, port: int, on_watch: Callable[[bool], None] = lambda watched: None
) -> GrpcServer:
    """Listen on `port` (0 = any) once the core serves. Raises OSError and EngineDeadError.

    `on_watch` is told when the first watcher of prompt reports comes and the last one leaves.
    """
    info, settings = await state.client.wait_ready(), state.settings
    reporter = state.make_reporter(info, on_watch)
    service = EngineService(
        state.client,
        state.model.request_maker(info, settings.max_logprobs),
        state.lifecycle,
        state.metrics,
        reporter,
        max_model_len=info.max_model_len,
    )
    server = GrpcServer(
        service,
        state.lifecycle,
        Keyring(settings.api_keys, settings.fleet_secret),
        fleet_only=settings.fleet_secret is not None,
        host=settings.host,
        port=port,
    )
    await server.start()
    return server
