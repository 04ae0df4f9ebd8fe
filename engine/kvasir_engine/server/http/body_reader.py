"""Bodies of requests, prepared for the core: small ones here, large ones by a body worker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from kvasir_engine.server.anthropic.messages_request import count_tokens, prepare_messages
from kvasir_engine.server.http.body import ClientGoneError, read_body
from kvasir_engine.server.large_bodies.shared_body import SharedBody
from kvasir_engine.server.large_bodies.worker_messages import (
    Document,
    Job,
    Prepared,
    Result,
)
from kvasir_engine.server.oip.infer import prepare_infer
from kvasir_engine.server.openai.api_error import ApiError, refused
from kvasir_engine.server.openai.prepared_wire import decode_prepared
from kvasir_engine.server.openai.preparer import PreparedRequest
from kvasir_engine.server.openai.reporting import report_runs
from kvasir_engine.server.openai.schema import ChatBody, CompletionBody
from kvasir_engine.server.openai_responses.responses_body import ResponsesChatBody
from kvasir_engine.server.openai_responses.responses_request import prepare_response
from kvasir_engine.server.server_state import ServerState

CLIENT_CLOSED = 499
"""nginx's status for a client that left before its answer: nobody reads it but the metrics."""
_KINDS: dict[str, type[ChatBody]] = {
    "chat": ChatBody,
    "messages": ChatBody,
    "responses": ResponsesChatBody,
}
"""Bodies that routes answer by, where they are no completions."""
_T = TypeVar("_T")


class BodyReader:
    """Reads the bodies of the routes that have one."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def prepared(
        self, request: Request, route: str, model: str | None = None
    ) -> PreparedRequest:
        """Return what a generating `route` sends to the core. Raises ApiError."""
        body = await self._read(request)
        request_id: str = request.scope["state"]["request_id"]
        if isinstance(body, SharedBody):
            result = await self._by_worker(request, body, Job(route, request_id, model))
            if not isinstance(result, Prepared):
                raise refused(result)
            kind = _KINDS.get(route, CompletionBody)
            return await decode_prepared(result.content, kind, self._state.model.tokenizer)
        async with self._state.turns.body():
            prepared = await self._prepare(body, route, request_id, model)
        reporter = self._state.reporter
        if reporter is not None and reporter.watched:
            template = self._state.model.chat_template
            report_runs(reporter, template, prepared.body, prepared.runs)
        await self._state.turns.pause()  # before the answer is begun
        return prepared

    async def _prepare(
        self, raw: bytes, route: str, request_id: str, model: str | None
    ) -> PreparedRequest:
        preparer = self._state.preparer
        if route == "chat":
            return await preparer.chat(raw, request_id)
        if route == "messages":
            return await prepare_messages(preparer, raw, request_id)
        if route == "responses":
            return await prepare_response(preparer, raw, request_id)
        if route == "infer":
            return await prepare_infer(preparer, raw, model or self._state.model.name, request_id)
        return await preparer.completion(raw, request_id)

    async def document(self, request: Request, route: str) -> bytes:
        """Return the JSON that answers a route that generates nothing. Raises ApiError."""
        body = await self._read(request)
        if isinstance(body, SharedBody):
            result = await self._by_worker(request, body, Job(route, ""))
            if not isinstance(result, Document):
                raise refused(result)
            return result.json
        preparer = self._state.preparer
        async with self._state.turns.body():
            if route == "count_tokens":
                return await count_tokens(preparer, body)
            return await (preparer.tokenize if route == "tokenize" else preparer.detokenize)(body)

    async def _read(self, request: Request) -> bytes | SharedBody:
        limit, budget = self._state.settings.max_body_bytes, self._state.body_workers.budget
        try:
            return await read_body(request.scope, request.receive, limit, budget)
        except ClientGoneError as error:
            raise _client_closed() from error

    async def _by_worker(self, request: Request, body: SharedBody, job: Job) -> Result:
        try:
            self._state.check_ready()
        except ApiError:
            body.close()
            raise
        job.adapters = self._state.adapters.names
        reporter = self._state.reporter
        workers = self._state.body_workers
        if reporter is None:
            reading = workers.read(job, body)
        else:
            job.watch = reporter.watch
            reading = workers.read(job, body, reporter.deliver)
        return await _unless_gone(request, reading)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Return what `work` returns; it is cancelled when the client leaves."""
    working, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _client_closed()
        return working.result()
    finally:
        working.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _client_closed() -> ApiError:
    return ApiError(CLIENT_CLOSED, "The client closed the connection.")
