"""The Engine service over a core client: generation, abort, load and prompt reports."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc

from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine.core.client import CoreClient, EngineDeadError, RequestRejectedError
from kvasir_engine.server.auth import Keyring
from kvasir_engine.server.generation.api_metrics import ApiMetrics
from kvasir_engine.server.generation.generation import (
    Generation,
    GenerationFailedError,
    GenerationInterruptedError,
    Interruption,
)
from kvasir_engine.server.generation.request_log import RequestLog
from kvasir_engine.server.lifecycle import Lifecycle
from kvasir_engine.server.openai.api_error import ApiError, invalid
from kvasir_engine.server.reports.reporter import PromptReporter
from kvasir_engine.server.rpc import convert
from kvasir_engine.server.rpc.call_auth import admits_call, refuse_call
from kvasir_engine.server.rpc.generate_reader import GenerateReader
from kvasir_engine.server.rpc.responses import ResponseStream

LOAD_TICK_SECONDS = 0.02
LOAD_HEARTBEAT_SECONDS = 0.16
"""Age at which an unchanged load is sent again: a tick or two late is still within 200 ms."""

_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}

_EXPECTED = (
    RequestRejectedError,
    EngineDeadError,
    GenerationFailedError,
    GenerationInterruptedError,
)

Context = Any
"""grpc.aio.ServicerContext; grpc has no types."""


class EngineService:
    """Implements kvasir.engine.v1.Engine; one object serves every call."""

    def __init__(
        self,
        client: CoreClient,
        reader: GenerateReader,
        lifecycle: Lifecycle,
        metrics: ApiMetrics,
        reporter: PromptReporter,
        keyring: Keyring,
        request_log: RequestLog,
    ) -> None:
        self._client = client
        self._reader = reader
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._reporter = reporter
        self._keyring = keyring
        self._request_log = request_log
        self._running: dict[str, Generation] = {}

    def close(self) -> None:
        """End what runs beside the calls."""
        self._reporter.close()

    # The handlers write instead of yielding: so a cancelled call ends within them, at once.

    async def Generate(self, raw: bytes, context: Context) -> None:  # noqa: N802
        """Generate and stream. A request that cannot run ends the call with its status."""
        try:
            prepared = await self._reader.read(raw)
            [run] = prepared.runs
            request_id = run.request.request_id
            if request_id in self._running:
                raise invalid(f"request_id {request_id!r} runs already.", "request_id")
        except ApiError as error:
            status = _STATUS.get(error.status, grpc.StatusCode.INTERNAL)
            await context.abort(status, error.message)
            raise
        self._request_log.write([run])
        with_token_ids = bool(prepared.body.return_token_ids)
        turns = self._reader.intake.turns
        generation = Generation(self._client, self._metrics, [run], turns)
        self._running[request_id] = generation
        try:
            with self._lifecycle.run(generation):
                await generation.admit()
                await context.send_initial_metadata(())
                stream = ResponseStream(generation, with_token_ids=with_token_ids)
                async with contextlib.aclosing(stream.messages()) as messages:
                    async for response in messages:
                        await context.write(response)
        except _EXPECTED as error:
            await _end(context, error)
        finally:
            del self._running[request_id]
            await generation.close()

    async def Abort(self, message: pb.AbortRequest, context: Context) -> pb.AbortResponse:  # noqa: N802
        """End a running Generate call."""
        generation = self._running.get(message.request_id)
        if generation is not None:
            generation.interrupt(Interruption.DISCONNECT)
        return pb.AbortResponse(found=generation is not None)

    async def WatchLoad(self, message: pb.WatchLoadRequest, context: Context) -> None:  # noqa: N802
        """Stream the load, on change and as a heartbeat, for as long as the caller's secret is
        accepted."""
        clock = asyncio.get_running_loop().time
        sent: pb.Load | None = None
        sent_at = 0.0
        while True:
            load = self._load()
            if clock() - sent_at >= LOAD_HEARTBEAT_SECONDS or _changed(sent, load):
                sent, sent_at = load, clock()
                await self._check_secret(context)
                await context.write(load)
            await asyncio.sleep(LOAD_TICK_SECONDS)

    async def WatchPrompts(  # noqa: N802
        self, message: pb.WatchPromptsRequest, context: Context
    ) -> None:
        """Stream reports of prompts of the last seconds and from now on."""
        with self._reporter.subscribe() as subscription:
            # The headers tell the caller that no prompt after them is missed
            await context.send_initial_metadata(())
            while True:
                reports, dropped = await subscription.next_reports()
                await self._check_secret(context)
                await context.write(convert.prompt_reports(reports, dropped))

    async def _check_secret(self, context: Context) -> None:
        """End a watch whose secret is accepted no more; it would go on for ever otherwise."""
        if not admits_call(self._keyring, context.invocation_metadata() or ()):
            await refuse_call(self._keyring, context)

    def _load(self) -> pb.Load:
        return convert.load(
            self._client.load(),
            ready=self._lifecycle.ready,
            draining=self._lifecycle.draining,
            leaving=self._lifecycle.has_fault,
        )


def _changed(sent: pb.Load | None, load: pb.Load) -> bool:
    """Return True if `load` is news; the step's age alone is not, it always moves."""
    if sent is None:
        return True
    return (
        load.running != sent.running
        or load.waiting != sent.waiting
        or load.inflight_tokens != sent.inflight_tokens
        or load.kv_usage != sent.kv_usage
        or load.ready != sent.ready
        or load.draining != sent.draining
        or load.leaving != sent.leaving
    )


async def _end(context: Context, error: Exception) -> None:
    """End a call with the status that says why it cannot go on."""
    status, text = grpc.StatusCode.UNAVAILABLE, str(error)
    if isinstance(error, RequestRejectedError):
        status = _STATUS.get(error.status, grpc.StatusCode.INTERNAL)
        if error.retry_after is not None:
            context.set_trailing_metadata((("retry-after", str(error.retry_after)),))
    elif isinstance(error, GenerationFailedError):
        status = grpc.StatusCode.INTERNAL
    elif isinstance(error, EngineDeadError):
        text = f"the engine has ended: {error}"
    elif isinstance(error, GenerationInterruptedError):
        if error.reason is Interruption.HANDOVER:
            text = "the engine is draining; go on elsewhere with resume."
        else:
            status, text = grpc.StatusCode.CANCELLED, "aborted before it began."
    await context.abort(status, text)
