"""The gRPC server: the Engine service and grpc.health.v1 on one port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine.server.auth import Keyring
from kvasir_engine.server.lifecycle import Lifecycle
from kvasir_engine.server.rpc.call_auth import admits_call, refuse_call
from kvasir_engine.server.rpc.engine_service import EngineService

MAX_REQUEST_BYTES = 16 * 2**20
MAX_CONCURRENT_CALLS = 8192
SERVICE_NAME = "kvasir.engine.v1.Engine"
_HEALTH_PREFIX = "/grpc.health.v1.Health/"
_HEALTH_TICK_SECONDS = 0.1

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_metadata_size", 16 * 2**10),
    # A second server on the port must fail, not take half of its connections
    ("grpc.so_reuseport", 0),
    # Finds peers that vanished; allows clients the same
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)


class GrpcServer:
    """Own the port and the health status, which follows `lifecycle.ready`."""

    def __init__(
        self,
        service: EngineService,
        lifecycle: Lifecycle,
        keyring: Keyring,
        *,
        host: str,
        port: int,
    ) -> None:
        """`keyring`: every call but health must carry one of its fleet secrets; where it has none,
        an API key, if there are any."""
        self._service = service
        self._lifecycle = lifecycle
        self._server = grpc.aio.server(
            interceptors=(_AuthInterceptor(keyring),),
            options=_OPTIONS,
            maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS,
        )
        self._health = health.aio.HealthServicer()
        self._server.add_generic_rpc_handlers((_handlers(service),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._address = f"{host}:{port}"
        self._follower: asyncio.Task[None] | None = None
        self.port = port

    async def start(self) -> None:
        """Listen. Raises OSError when the port cannot be had."""
        try:
            self.port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise OSError(
                f"gRPC cannot listen on {self._address}: {error}; choose another with --grpc-port."
            ) from error
        await self._set_health()
        await self._server.start()
        self._follower = asyncio.create_task(self._follow_readiness())

    async def stop(self, grace: float) -> None:
        """Take no more calls, give running ones `grace` seconds, then cut them."""
        if self._follower is not None:
            self._follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._follower
        await self._server.stop(grace)
        self._service.close()

    async def _follow_readiness(self) -> None:
        ready = self._lifecycle.ready
        while True:
            await asyncio.sleep(_HEALTH_TICK_SECONDS)
            if self._lifecycle.ready != ready:
                ready = self._lifecycle.ready
                await self._set_health()

    async def _set_health(self) -> None:
        statuses = health_pb2.HealthCheckResponse
        status = statuses.SERVING if self._lifecycle.ready else statuses.NOT_SERVING
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)


def _handlers(service: EngineService) -> Any:
    """Return the service's methods. A Generate call's message comes as it was sent: a large one
    is not parsed on the event loop."""
    calls = (
        ("Generate", grpc.unary_stream_rpc_method_handler, None),
        ("Abort", grpc.unary_unary_rpc_method_handler, pb.AbortRequest.FromString),
        ("WatchLoad", grpc.unary_stream_rpc_method_handler, pb.WatchLoadRequest.FromString),
        ("WatchPrompts", grpc.unary_stream_rpc_method_handler, pb.WatchPromptsRequest.FromString),
    )
    methods = {
        name: make(
            getattr(service, name),
            request_deserializer=parse,
            response_serializer=lambda message: message.SerializeToString(),
        )
        for name, make, parse in calls
    }
    return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)


class _AuthInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Ends calls of strangers before their message is read. Health is open: kubelets ask it."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """Pass the call on, or answer it with UNAUTHENTICATED."""
        handler = await continuation(details)
        if handler is None or details.method.startswith(_HEALTH_PREFIX):
            return handler
        if admits_call(self._keyring, details.invocation_metadata):
            return handler
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._refuse)
        return grpc.unary_unary_rpc_method_handler(self._refuse)

    async def _refuse(self, _message: Any, context: Any) -> None:
        await refuse_call(self._keyring, context)
