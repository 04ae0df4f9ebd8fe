"""gRPC to an engine. Imported only when a replica has a gRPC port: grpc costs half a second."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

# gRPC's own lines on stderr are no JSON; its errors reach our log as exceptions
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# gRPC restarts its threads in a forked child, which crashes some before they execute their program.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from kvasir.wire.fleet_secret import FLEET_SECRET_HEADER
from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir.wire.proto.engine.v1 import engine_pb2_grpc
from kvasir_router.wire.tls import ReplicaTrust

StreamError = grpc.aio.AioRpcError
"""A stream ended; str() of its `code()` and `details()` says why."""

_MAX_MESSAGE_BYTES = 16 * 2**20

_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    # A channel shares nothing: neither a connection nor the pause after a failed one, which grows
    # to minutes, with the channel that was closed before it
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)


class EngineChannel:
    """A connection to one engine, for one attempt: after a failure, make a new one."""

    def __init__(self, channel: Any, fleet_secret: str | None) -> None:
        self._stub = engine_pb2_grpc.EngineStub(channel)
        self._metadata = ((FLEET_SECRET_HEADER, fleet_secret),) if fleet_secret else ()

    def watch_load(self) -> AsyncIterator[pb.Load]:
        """The engine's load as it changes. Raises StreamError."""
        call: AsyncIterator[pb.Load] = self._stub.WatchLoad(
            pb.WatchLoadRequest(), metadata=self._metadata
        )
        return call

    def watch_prompts(self) -> AsyncIterator[pb.PromptReports]:
        """Reports of prompts of the last seconds and from now on. Raises StreamError."""
        call: AsyncIterator[pb.PromptReports] = self._stub.WatchPrompts(
            pb.WatchPromptsRequest(), metadata=self._metadata
        )
        return call


@asynccontextmanager
async def open_channel(
    host: str, port: int, fleet_secret: str | None, trust: ReplicaTrust | None
) -> AsyncIterator[EngineChannel]:
    """Connect when it is first used; over TLS if it is said whom to `trust`."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if trust is None:
        made = grpc.aio.insecure_channel(address, options=_OPTIONS)
    else:
        credentials = grpc.ssl_channel_credentials(trust.authorities)
        made = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
    async with made as channel:
        yield EngineChannel(channel, fleet_secret)


def why(error: Any) -> str:
    """Return one line on why a stream ended with a StreamError."""
    return f"{error.code().name}: {error.details()}"
