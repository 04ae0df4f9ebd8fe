"""Start the gRPC server of an API process."""

from __future__ import annotations

from collections.abc import Callable

from kvasir_engine.server.openai.intake import Intake
from kvasir_engine.server.rpc.engine_service import EngineService
from kvasir_engine.server.rpc.generate_reader import GenerateReader
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
    maker = state.model.request_maker(info, settings.max_logprobs)
    intake = Intake(maker, info.max_model_len, state.turns)
    service = EngineService(
        state.client,
        GenerateReader(intake, state.body_workers),
        state.lifecycle,
        state.metrics,
        reporter,
        state.keyring,
        state.request_log,
    )
    server = GrpcServer(
        service,
        state.lifecycle,
        state.keyring,
        host=settings.host,
        port=port,
    )
    await server.start()
    return server
