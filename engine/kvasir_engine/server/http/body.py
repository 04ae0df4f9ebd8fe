"""Reading of a request's body: into memory, or what is large into memory that can be shared."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import Receive, Scope

from kvasir_engine.server.large_bodies.shared_body import (
    LARGE_BODY_BYTES,
    BudgetExceededError,
    ByteBudget,
    SharedBody,
)
from kvasir_engine.server.openai.api_error import ApiError

READ_SECONDS = 120.0
"""Seconds that a client gets to send its body."""
_DISCARD_SECONDS = 5.0


class ClientGoneError(Exception):
    """The client closed the connection before its body was complete."""


async def read_body(
    scope: Scope, receive: Receive, limit: int, budget: ByteBudget
) -> bytes | SharedBody:
    """Return the whole body, a large one within `budget` and for the caller to close.

    Raises ApiError: 413 for more than `limit` bytes, 408 for one that is late, 503 for one beyond
    the budget. Raises ClientGoneError.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            await _discard(receive, limit)
            raise _too_large(limit)
    shared = SharedBody(budget)
    try:
        async with asyncio.timeout(READ_SECONDS):
            small = await _receive_into(shared, receive, limit, budget)
    except BaseException as error:
        shared.close()
        if isinstance(error, TimeoutError):
            raise _too_late() from error
        raise
    return shared if small is None else small


async def _receive_into(
    shared: SharedBody, receive: Receive, limit: int, budget: ByteBudget
) -> bytes | None:
    """Return a body that is small; None if it is in `shared`."""
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        more = message.get("more_body", False)
        chunks.append(chunk)
        refusal = _too_large(limit) if size > limit else None
        if refusal is None and size > LARGE_BODY_BYTES:
            try:
                shared.append(b"".join(chunks))
            except BudgetExceededError:
                refusal = _too_many(budget)
            chunks.clear()
        if refusal is not None:
            if more:
                await _discard(receive, limit)
            raise refusal
    if not shared.size:
        return b"".join(chunks)
    return None


async def _discard(receive: Receive, budget: int) -> None:
    """Read on for a while: a client that still sends when the connection is closed would see a
    reset instead of the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while budget > 0:
                message = await receive()
                budget -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"The body is larger than {limit} bytes; the server's --max-body-bytes raises the limit.",
        code="body_too_large",
        headers={"connection": "close"},
    )


def _too_late() -> ApiError:
    sentence = f"The body did not arrive within {READ_SECONDS:g} s."
    return ApiError(408, sentence, code="body_too_slow", headers={"connection": "close"})


def _too_many(budget: ByteBudget) -> ApiError:
    return ApiError(
        503,
        f"The server holds {budget.held} bytes of large bodies already, of at most {budget.limit}; "
        "try again later.",
        code="too_many_large_bodies",
        headers={"connection": "close", "retry-after": "1"},
    )
