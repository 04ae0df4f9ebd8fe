"""Parsing of the messages that are small, whatever is sent in their place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

MAX_SMALL_BYTES = 4096
"""A request id of 256 characters is the longest that these messages hold."""


def parsed_small(
    method: Callable[[Any, Any], Awaitable[Any]], kind: Any
) -> Callable[[bytes, Any], Awaitable[Any]]:
    """Return `method`, of a message `kind`, as one of the message's bytes.

    It ends calls with INVALID_ARGUMENT and a sentence for what is too large or is no such message.
    """

    async def parse_and_call(raw: bytes, context: Any) -> Any:
        name = kind.DESCRIPTOR.name
        if len(raw) > MAX_SMALL_BYTES:
            sentence = f"a {name} takes at most {MAX_SMALL_BYTES} bytes, got {len(raw)}."
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
        try:
            message = kind.FromString(raw)
        except DecodeError as error:
            sentence = f"the message is no {name}: {error}."
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
        return await method(message, context)

    return parse_and_call
