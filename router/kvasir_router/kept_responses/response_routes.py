"""Routes of one kept response: GET, DELETE and cancel."""

from urllib.parse import unquote

import msgspec

from kvasir_router.kept_responses.kept_responses import KeptResponses
from kvasir_router.wire import responses
from kvasir_router.wire.endpoints import RESPONSE_PREFIX
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.responses import Answer, RefusalError

_CANCEL = "/cancel"


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
    response_id = unquote(request.path.removeprefix(RESPONSE_PREFIX))
    cancels = response_id.endswith(_CANCEL)
    if (request.method == b"POST") is not cancels or "/" in response_id.removesuffix(_CANCEL):
        raise RefusalError(_no_route(request))
    if request.method == b"DELETE":
        await kept.deleted(owner, response_id)
        gone = {"id": response_id, "object": "response", "deleted": True}
        return Answer(200, msgspec.json.encode(gone))
    found = await kept.found(owner, response_id.removesuffix(_CANCEL))
    if cancels:
        raise RefusalError(
            responses.error(
                400,
                f"The response `{found.id}` has ended; only responses that run in the background "
                "can be cancelled, and none do here.",
                "invalid_request",
            )
        )
    if b"stream=true" in request.target.partition(b"?")[2].lower():
        raise RefusalError(
            responses.error(
                400,
                "stream is not supported here: a kept response is whole; leave stream out.",
                "unsupported",
                "stream",
            )
        )
    return Answer(200, found.response)


def _no_route(request: Request) -> Answer:
    return responses.error(
        405,
        f"{request.method.decode()} is not for {request.path[:_MAX_SHOWN]}; use GET or DELETE of "
        f"{RESPONSE_PREFIX}ID, or POST of {RESPONSE_PREFIX}ID{_CANCEL}.",
        "method_not_allowed",
        allow="GET, HEAD, DELETE, POST",
    )


_MAX_SHOWN = 256
