"""The gRPC server: the Engine service and grpc.health.v1 on one port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine.server.auth import Keyring
from kvasir_engine.server.lifecycle import Lifecycle
from kvasir_engine.server.rpc.call_auth import admits_call, refuse_call
from kvasir_engine.server.rpc.engine_service import EngineService
from kvasir_engine.server.rpc.small_messages import parsed_small

MAX_REQUEST_BYTES = 4 * 2**20
"""gRPC's own default: taking a message in holds the event loop, for a millisecond a MiB."""
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
        self._server.add_generic_rpc_handlers((_health_handlers(self._health),))
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
    """Return the service's methods."""
    methods = {
        "Generate": _method(service.Generate, streams=True),
        "Abort": _method(parsed_small(service.Abort, pb.AbortRequest), streams=False),
        "WatchLoad": _method(parsed_small(service.WatchLoad, pb.WatchLoadRequest), streams=True),
        "WatchPrompts": _method(
            parsed_small(service.WatchPrompts, pb.WatchPromptsRequest), streams=True
        ),
    }
    return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)


def _health_handlers(service: health.aio.HealthServicer) -> Any:
    kind = health_pb2.HealthCheckRequest
    methods = {
        "Check": _method(parsed_small(service.Check, kind), streams=False),
        "Watch": _method(parsed_small(service.Watch, kind), streams=True),
    }
    return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)


def _method(method: Callable[[bytes, Any], Awaitable[Any]], *, streams: bool) -> Any:
    """Return the handler of a method, which gets the message's bytes: large ones are not parsed on
    the event loop."""
    make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
    return make(method, response_serializer=lambda message: message.SerializeToString())


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
