"""Keeping of responses: what a client goes on with, and what is kept at its answer's end."""

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec
import structlog

from kvasir_router.kept_responses.conversation_body import (
    continued,
    id_to_keep,
    input_items,
    response_of_events,
)
from kvasir_router.kept_responses.response_store import KeptResponse, ResponseStore, StoreError
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.wire import responses
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies.body_edit import add_member
from kvasir_router.wire.query import Query
from kvasir_router.wire.responses import RefusalError

_log = structlog.get_logger("kvasir_router.responses")
_KEEP_SECONDS = 10.0
"""Seconds that the end of an answer waits to be kept; then the client gets it all the same."""
_MAX_ID = 256
_MARK = "kept_by_router"
"""Member of a body by which the router tells an engine that it keeps the response."""


class KeptResponses:
    """The responses of a router's clients, each its own key's alone."""

    def __init__(self, store: ResponseStore, tasks: SupervisedTasks, max_body: int) -> None:
        """`max_body`: bytes that a body may have once the earlier items are in it."""
        self.store = store
        self._tasks = tasks
        self._max_body = max_body
        self.outcomes: Counter[str] = Counter()
        """Answers that were to be kept: `kept`, and `failed`, which the log explains."""

    async def found(self, owner: str, response_id: str, param: str | None = None) -> KeptResponse:
        """Return the owner's response. Raises RefusalError."""
        try:
            kept = None
            if len(response_id) <= _MAX_ID:
                kept = await self.store.find(owner, response_id)
        except StoreError as error:
            raise _unreachable(error) from None
        if kept is None:
            raise _unknown(response_id, param)
        return kept

    async def deleted(self, owner: str, response_id: str) -> None:
        """Forget the owner's response. Raises RefusalError if there is none."""
        try:
            gone = await self.store.delete(owner, response_id)
        except StoreError as error:
            raise _unreachable(error) from None
        if not gone:
            raise _unknown(response_id, None)

    async def continued(self, owner: str, response_id: str, body: bytes) -> bytes:
        """Return the body of a request that goes on with a response, with all that was said before
        in its input. Raises RefusalError."""
        kept = await self.found(owner, response_id, "previous_response_id")
        if len(body) + len(kept.items) + len(kept.response) > self._max_body:
            raise RefusalError(
                responses.error(
                    413,
                    f"The conversation of {response_id} has become longer than the "
                    f"{self._max_body} bytes that a request may have; begin a new one.",
                    "body_too_large",
                    "previous_response_id",
                )
            )
        try:
            return await asyncio.to_thread(continued, body, kept.response, kept.items)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RefusalError(
                responses.error(400, f"The input cannot be read: {error}.", None, "input")
            ) from None

    def mark(self, query: Query, owner: str) -> None:
        """Tell the engine that earlier items are in the input, and that the response is kept if the
        client has not asked for the opposite."""
        add_member(query.request, _MARK, b"true")
        if query.envelope.store is not False:
            query.keeper = Keeper(self, self._tasks, owner, query.request.body)

    async def keep(self, owner: str, body: bytes, answer: Callable[[], bytes]) -> None:
        """Keep an answer. The client has it in any case: what fails is logged and counted."""
        try:
            async with asyncio.timeout(_KEEP_SECONDS):
                made = await asyncio.to_thread(_made, owner, body, answer)
                if made is None:
                    return
                await self.store.put(made)
        except (StoreError, TimeoutError, msgspec.MsgspecError, ValueError) as error:
            self.outcomes["failed"] += 1
            _log.error("a response was not kept", reason=str(error) or "it took too long")
        else:
            self.outcomes["kept"] += 1


class Keeper:
    """Keep the answer to one request, before its client has the end of it: it may go on at once."""

    def __init__(
        self, kept: KeptResponses, tasks: SupervisedTasks, owner: str, body: bytes
    ) -> None:
        self._kept = kept
        self._tasks = tasks
        self._owner = owner
        self._body = body

    def keep_body(self, body: bytes, then: Callable[[], None]) -> None:
        """Keep the response that is a unary answer's body, then call `then`."""
        self._tasks.run("keep response", self._keep(lambda: body, then))

    def keep_event(self, events: bytes, then: Callable[[], None]) -> None:
        """Keep the response in the last of a stream's events, then call `then`."""
        self._tasks.run("keep response", self._keep(lambda: response_of_events(events), then))

    async def _keep(self, answer: Callable[[], bytes], then: Callable[[], None]) -> None:
        await self._kept.keep(self._owner, self._body, answer)
        then()


def withdraw_mark(request: Request) -> None:
    """Let no client say in the router's name that its response is kept, where none is."""
    if _MARK.encode() in request.body:
        add_member(request, _MARK, b"false")


def previous_response(request: Request, envelope: Envelope) -> str | None:
    """Return the id of the response that a request goes on with. Raises RefusalError."""
    given = envelope.previous_response_id
    if request.outline is not None and given is None:
        raw = request.outline.raw(request.body, "previous_response_id")
        if len(raw) > _MAX_ID:
            raise _unknown(raw[:_MAX_ID].decode(errors="replace"), "previous_response_id")
    if given is not None and not isinstance(given, str):
        message = "previous_response_id must be a string."
        raise RefusalError(responses.error(400, message, None, "previous_response_id"))
    return given


def _made(owner: str, body: bytes, answer: Callable[[], bytes]) -> KeptResponse | None:
    response = answer()
    response_id = id_to_keep(response)
    if response_id is None:
        return None
    return KeptResponse(owner, response_id, response, input_items(body))


def _unknown(response_id: str, param: str | None) -> RefusalError:
    message = (
        f"There is no response `{response_id[:_MAX_ID]}` here: it was not kept, is too old, was "
        "deleted, or is another API key's."
    )
    return RefusalError(responses.error(404, message, "response_not_found", param))


def _unreachable(error: StoreError) -> RefusalError:
    _log.error("a response could not be looked up", reason=str(error))
    message = "The router cannot reach the responses that it keeps; try again soon."
    return RefusalError(responses.error(503, message, "responses_unavailable", retry_after=1))
