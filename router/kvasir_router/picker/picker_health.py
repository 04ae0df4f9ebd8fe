"""Health of the endpoint picker by gRPC's health protocol, which gateways and load balancers ask.

Names and meanings are those of the inference extension's endpoint picker protocol
(docs/proposals/004-endpoint-picker-protocol there, "Health Checking").
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

FOLLOW_SECONDS = 0.2
"""Until those who watch are told of a change."""
MAX_BYTES = 1024
"""Limit of a message: a name that is watched is kept."""
LIVENESS = "liveness"
READINESS = "readiness"

_Status = health_pb2.HealthCheckResponse


class PickerHealth:
    """Answer `Check` and `Watch`: `liveness` always serves; `readiness`, the service itself and the
    whole ("") do while `ready`, which is read for each check."""

    def __init__(self, service: str, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._told: bool | None = None
        self._names = ("", READINESS, service)
        self._servicer = health.aio.HealthServicer()

    def handler(self) -> Any:
        """Return the service's methods, for a server."""
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(
                self._check, response_serializer=_Status.SerializeToString
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                self._watch, response_serializer=_Status.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)

    async def refresh(self) -> None:
        """Say what holds now; those who watch are told if it is new."""
        ready = self._ready()
        if self._told is None:
            await self._servicer.set(LIVENESS, _Status.SERVING)
        if ready != self._told:
            self._told = ready
            for name in self._names:
                await self._servicer.set(name, _Status.SERVING if ready else _Status.NOT_SERVING)

    async def follow(self) -> None:
        """Tell of changes, for ever."""
        while True:
            await self.refresh()
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _check(self, raw: bytes, context: Any) -> Any:
        request = await _parsed(raw, context)
        await self.refresh()
        return await self._servicer.Check(request, context)

    async def _watch(self, raw: bytes, context: Any) -> None:
        request = await _parsed(raw, context)
        await self.refresh()
        await self._servicer.Watch(request, context)


async def _parsed(raw: bytes, context: Any) -> Any:
    """Return the request; ends the call with INVALID_ARGUMENT for what is none."""
    if len(raw) > MAX_BYTES:
        sentence = f"A HealthCheckRequest takes at most {MAX_BYTES} bytes, got {len(raw)}."
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
    try:
        return health_pb2.HealthCheckRequest.FromString(raw)
    except DecodeError as error:
        sentence = f"The message is no HealthCheckRequest: {error}."
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
