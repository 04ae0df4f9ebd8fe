"""Key by which the requests of one conversation stay with one revision."""

from typing import Any

import msgspec
import xxhash

from kvasir_router.wire.query import Query

_SESSION = b"x-session-id"
_MAX_OPENING = 16
"""Messages that a conversation may begin with before the user's first one."""


def conversation_key(query: Query, seed: int) -> int | None:
    """Return 64 bits that all requests of a conversation have; None for one that has no key.

    The first of these that a request has: the header x-session-id, the body's `user`, the messages
    of a chat up to the user's first one, which are the same in each of its turns. A body whose
    prompt is too long to be decoded has none but the first two.
    """
    value = query.header(_SESSION)
    user = query.envelope.user
    if not value and isinstance(user, str):
        value = user.encode("utf-8", "surrogatepass")
    if not value:
        value = _opening(query.envelope.messages)
    return xxhash.xxh3_64_intdigest(value, seed) if value else None


def _opening(messages: Any) -> bytes:
    if not isinstance(messages, list):
        return b""
    for at, message in enumerate(messages[:_MAX_OPENING]):
        if isinstance(message, dict) and message.get("role") == "user":
            try:
                return msgspec.json.encode(messages[: at + 1])
            except (ValueError, RecursionError):  # half a surrogate pair, or nested too deeply
                return b""
    return b""
