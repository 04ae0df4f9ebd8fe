"""Run a Generation as the answer to one HTTP request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvasir_engine.core.client import EngineDeadError, RequestRejectedError
from kvasir_engine.server.generation.generation import (
    Generation,
    GenerationFailedError,
    GenerationInterruptedError,
    Interruption,
)
from kvasir_engine.server.lifecycle import Lifecycle
from kvasir_engine.server.long_json import encode_in_turns
from kvasir_engine.server.loop_turns import LoopTurns
from kvasir_engine.server.openai import router_contract
from kvasir_engine.server.openai.answer import Answer
from kvasir_engine.server.openai.api_error import ApiError, from_engine
from kvasir_engine.server.openai.sse import StreamWriter, shutting_down

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class GenerationResponse(Response):
    """A raw ASGI response: admits the generation, then streams it or answers at its end.

    One task beside the request's own waits for the client to leave and then breaks the
    generation off; nothing else runs per request or per token.
    """

    def __init__(
        self, answer: Answer, lifecycle: Lifecycle, writer: StreamWriter, turns: LoopTurns
    ) -> None:
        """`writer` renders the answer's events, where it is streamed; `turns` are those in which a
        long unary answer is rendered."""
        super().__init__()
        self._turns = turns
        self._writer = writer
        self._answer = answer
        self._generation = answer.generation
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Raises ApiError while nothing was sent."""
        watcher = asyncio.create_task(_watch(receive, self._generation))
        try:
            with self._lifecycle.run(self._generation):
                await self._respond(scope, send)
        except GenerationInterruptedError as error:
            if error.reason is Interruption.HANDOVER:
                raise self._unary_handover() from error
        except (RequestRejectedError, EngineDeadError) as error:
            raise from_engine(error) from error
        except GenerationFailedError as error:
            raise _failed(error) from error
        finally:
            watcher.cancel()
            await self._generation.close()

    async def _respond(self, scope: Scope, send: Send) -> None:
        await self._generation.admit()
        if self._answer.stream:
            await self._stream(send, scope["state"]["send"])
        else:
            async for updates in self._generation.updates():
                self._answer.take(updates)
            await self._send_unary(send)

    async def _send_unary(self, send: Send) -> None:
        answer = self._answer
        headers = [(b"content-type", b"application/json")]
        if answer.fleet:
            told = router_contract.unary_headers(self._generation, answer.usage)
            headers += [(name.encode(), value.encode()) for name, value in told.items()]
        parts = await encode_in_turns(answer.body(), self._turns)
        headers.append((b"content-length", b"%d" % sum(map(len, parts))))
        *before, last = parts
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in before:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await self._turns.pause()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def _unary_handover(self) -> ApiError:
        answer = self._answer
        if not answer.fleet:
            return shutting_down()
        state = router_contract.handover_state(self._generation, answer.usage)
        return shutting_down({"handover": state})

    async def _stream(self, send: Send, send_chunk: Send) -> None:
        writer = self._writer
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        try:
            async with contextlib.aclosing(self._generation.updates()) as batches:
                async for updates in batches:
                    if writer.opens_long:
                        await _send_parts(writer.openings(updates, self._turns), send_chunk)
                    if writer.is_wide:
                        await _send_parts(writer.wide_events(updates, self._turns), send_chunk)
                        continue
                    chunk = writer.events(updates)
                    if chunk:
                        await send_chunk(
                            {"type": "http.response.body", "body": chunk, "more_body": True}
                        )
            last = writer.end()
        except GenerationInterruptedError as error:
            last = writer.handover() if error.reason is Interruption.HANDOVER else b""
        except EngineDeadError as error:
            last = writer.error(from_engine(error))
        except GenerationFailedError as error:
            last = writer.error(_failed(error))
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def _send_parts(parts: AsyncIterator[bytes], send_chunk: Send) -> None:
    async for part in parts:
        await send_chunk({"type": "http.response.body", "body": part, "more_body": True})


def _failed(error: GenerationFailedError) -> ApiError:
    return ApiError(500, str(error), code="generation_failed")


async def _watch(receive: Receive, generation: Generation) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            generation.interrupt(Interruption.DISCONNECT)
            return
