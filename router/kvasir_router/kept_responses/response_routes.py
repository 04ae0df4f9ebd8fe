"""Routes of one kept response: GET, its input items, DELETE and cancel."""

import asyncio
from functools import partial
from urllib.parse import unquote

import msgspec

from kvasir_router.kept_responses.input_item_list import listed_items
from kvasir_router.kept_responses.kept_responses import KeptResponses
from kvasir_router.wire import responses
from kvasir_router.wire.endpoints import RESPONSE_PREFIX
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.responses import Answer, RefusalError

_READS = ("GET", "HEAD")
_ROUTES = {
    "": (*_READS, "DELETE"),
    "input_items": _READS,
    "cancel": ("POST",),
}
"""Methods by what stands behind a response's id."""
_MAX_SHOWN = 256


def is_for_one(request: Request) -> bool:
    """Return whether the request is about a kept response."""
    return request.path.startswith(RESPONSE_PREFIX)


async def answer_for_one(kept: KeptResponses | None, owner: str, request: Request) -> Answer:
    """Answer a request about one response. Raises RefusalError."""
    if kept is None:
        raise RefusalError(
            responses.error(
                404,
                "This router keeps no responses; start it with --response-store.",
                "response_not_found",
            )
        )
    name, _, part = request.path.removeprefix(RESPONSE_PREFIX).partition("/")
    response_id, method = unquote(name), request.method.decode()
    if method not in _ROUTES.get(part, ()):
        raise RefusalError(_no_route(request, part))
    if method == "DELETE":
        await kept.deleted(owner, response_id)
        gone = {"id": response_id, "object": "response", "deleted": True}
        return Answer(200, msgspec.json.encode(gone))
    found = await kept.found(owner, response_id)
    query = request.target.partition(b"?")[2]
    if part == "cancel":
        raise RefusalError(_ended(response_id))
    if part == "input_items":
        listing = partial(listed_items, response_id, found.items, query)
        return Answer(200, await asyncio.to_thread(listing))
    if b"stream=true" in query.lower():
        raise RefusalError(_not_streamed())
    return Answer(200, found.response)


def _ended(response_id: str) -> Answer:
    return responses.error(
        400,
        f"The response `{response_id}` has ended; only responses that run in the background can "
        "be cancelled, and none do here.",
        "invalid_request",
    )


def _not_streamed() -> Answer:
    message = "stream is not supported here: a kept response is whole; leave stream out."
    return responses.error(400, message, "unsupported", "stream")


def _no_route(request: Request, part: str) -> Answer:
    method, path = request.method.decode(), request.path[:_MAX_SHOWN]
    if allowed := ", ".join(_ROUTES.get(part, ())):
        message = f"{method} is not for {path}; use {allowed}."
        return responses.error(405, message, "method_not_allowed", allow=allowed)
    known = ", ".join(f"/{each}" for each in _ROUTES if each)
    message = f"There is no route {method} {path}. Behind the id of a response: nothing, {known}."
    return responses.error(404, message, "not_found")
