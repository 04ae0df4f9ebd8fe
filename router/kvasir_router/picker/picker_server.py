"""The endpoint picker's gRPC server. Imported where it has a port: grpc costs half a second."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

# As in feeds/rpc.py
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import structlog

from kvasir.certificates import TlsError, server_context
from kvasir.wire.proto.ext_proc.v3 import external_processor_pb2 as pb
from kvasir_router.file_watch import FileWatch
from kvasir_router.options.picker_settings import PickerSettings
from kvasir_router.picker.gateway_address import gateway_of
from kvasir_router.picker.picker_health import FOLLOW_SECONDS, PickerHealth
from kvasir_router.picker.picker_metrics import PickerCounts
from kvasir_router.picker.pool import Pool
from kvasir_router.picker.processing import Processing, ProcessingError
from kvasir_router.proxy.gateway import Gateway

_log = structlog.get_logger("kvasir_router.picker")

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

_KEEPALIVE = (
    # A gateway that vanished frees what it had within half a minute
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.max_metadata_size", 64 * 2**10),
)


class PickerServer:
    """Serve one process's gateways: `start`, then `close` as the router stops, then `stop`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings: PickerSettings = gateway.settings.picker
        self._pool = Pool(self._settings.namespace, self._settings.target_port)
        self._tasks = gateway.tasks.child()
        self._server: Any = None
        self._health = PickerHealth(SERVICE, lambda: gateway.ready)
        self.counts = PickerCounts()
        gateway.metrics.register(self.counts.families)

    async def start(self, port: int, *, shared: bool) -> int:
        """Listen; `shared`: other processes of this user may, too. Return the port. Raises OSError
        or TlsError."""
        settings, host = self._settings, self._gateway.settings.host
        self._server = grpc.aio.server(
            options=(
                *_KEEPALIVE,
                ("grpc.max_receive_message_length", settings.message_bytes),
                ("grpc.so_reuseport", int(shared)),
            ),
            maximum_concurrent_rpcs=settings.streams,
        )
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler(SERVICE, {"Process": process})
        self._server.add_generic_rpc_handlers((handler, self._health.handler()))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if settings.cert is None or settings.key is None:
                bound: int = self._server.add_insecure_port(address)
            else:
                reported = partial(self._gateway.metrics.file_reported, "picker certificate")
                made = _credentials(settings.cert, settings.key, reported)
                bound = self._server.add_secure_port(address, made)
        except RuntimeError as error:
            raise OSError(
                f"cannot listen on {address}: {error}; see --endpoint-picker-port"
            ) from None
        await self._health.refresh()
        await self._server.start()
        self._tasks.keep("picker health", self._health.follow, every=FOLLOW_SECONDS)
        _log.info("endpoint picker listening", port=bound, tls=settings.cert is not None)
        return bound

    async def close(self) -> None:
        """Take no more streams. Those under way go on until `stop`."""
        if self._server is not None:
            await self._health.refresh()
            seconds = self._gateway.settings.drain_timeout
            self._tasks.run("endpoint picker", self._server.stop(seconds))
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """End what is left."""
        if self._server is not None:
            await self._server.stop(0)
        await self._tasks.stop()

    async def _process(self, messages: Any, context: Any) -> None:
        """One stream, which ends with its request; cancelled when the gateway is gone."""
        replies: asyncio.Queue[pb.ProcessingResponse | None] = asyncio.Queue()
        counts = self.counts
        counts.streams += 1
        peer = gateway_of(context.peer())
        stream = Processing(self._gateway, self._settings, self._pool, replies.put_nowait, peer)
        reading = self._tasks.run("gateway", self._read(messages, stream, replies, context))
        ended = "broken"
        try:
            while (reply := await replies.get()) is not None:
                await context.write(reply)
                replies.task_done()
            ended = "complete"
        finally:
            counts.streams -= 1
            counts.ended[ended] += 1
            stream.left()
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _read(
        self,
        messages: Any,
        stream: Processing,
        replies: "asyncio.Queue[pb.ProcessingResponse | None]",
        context: Any,
    ) -> None:
        """Read on when all that was said is sent: who does not read is not read either."""
        try:
            async for message in messages:
                stream.take(message)
                await replies.join()
        except ProcessingError as error:
            _log.warning("a gateway is set up in a way that cannot work", reason=str(error))
            context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
            context.set_details(str(error))
        except Exception as error:
            self._gateway.tasks.defect("gateway", error)
            context.set_code(grpc.StatusCode.INTERNAL)
        finally:
            replies.put_nowait(None)


def _credentials(cert: Path, key: Path, reported: Callable[[bool], None]) -> Any:
    """Return what shows the certificate, that of now for each connection. Raises TlsError."""
    server_context(cert, key)  # says what is wrong
    watch = FileWatch(cert, key)
    watch.changed()
    news = partial(_news, watch, cert, key, reported)
    return grpc.dynamic_ssl_server_credentials(_pair(cert, key), news)


def _pair(cert: Path, key: Path) -> Any:
    return grpc.ssl_server_certificate_configuration([(key.read_bytes(), cert.read_bytes())])


def _news(watch: FileWatch, cert: Path, key: Path, reported: Callable[[bool], None]) -> Any:
    """Return the pair if it has changed and is good; on a thread of gRPC's."""
    try:
        if not watch.changed():
            return None
        server_context(cert, key)
        made = _pair(cert, key)
    except (TlsError, OSError) as error:
        _log.warning("the endpoint picker's certificate stays the last good one", reason=str(error))
        reported(False)
        return None
    reported(True)
    return made
