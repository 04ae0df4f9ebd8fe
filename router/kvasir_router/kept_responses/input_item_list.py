"""Input items of a kept response, as OpenAI lists them."""

from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from kvasir_router.wire import responses
from kvasir_router.wire.responses import RefusalError

MAX_LIMIT = 100
_LIMIT = 20
_PREFIXES = {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def listed_items(response_id: str, items: bytes, query: bytes) -> bytes:
    """Return the JSON page of items that a query string (`limit`, `order`, `after`) asks for.
    Raises RefusalError."""
    asked = dict(parse_qsl(query.decode("ascii", "replace")))
    given: list[Any] = msgspec.json.decode(items)
    whole = [_item(response_id, at, each) for at, each in enumerate(given)]
    if _order(asked) == "desc":
        whole.reverse()
    start, limit = _start(asked, whole), _limit(asked)
    page = whole[start : start + limit]
    made = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": start + limit < len(whole),
    }
    return msgspec.json.encode(made)


def _item(response_id: str, at: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return an item as a client reads it: with a type, an id and a state, and parts as content."""
    kind = given.get("type", "message")
    digest = blake2b(f"{response_id} {at}".encode(), digest_size=16).hexdigest()
    made = {"id": f"{_PREFIXES.get(kind, 'msg')}_{digest}", "status": "completed", **given}
    made["type"] = kind
    if kind == "message" and isinstance(given.get("content"), str):
        part = "output_text" if given.get("role") == "assistant" else "input_text"
        more: dict[str, Any] = {"annotations": []} if part == "output_text" else {}
        made["content"] = [{"type": part, "text": given["content"], **more}]
    return made


def _order(asked: dict[str, str]) -> str:
    order = asked.get("order", "desc")
    if order not in ("asc", "desc"):
        raise _refused('order must be "asc" or "desc".', "order")
    return order


def _limit(asked: dict[str, str]) -> int:
    limit = asked.get("limit", str(_LIMIT))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_LIMIT):
        raise _refused(f"limit must be 1 to {MAX_LIMIT}.", "limit")
    return int(limit[:9])


def _start(asked: dict[str, str], items: list[dict[str, Any]]) -> int:
    after = asked.get("after")
    if after is None:
        return 0
    at = next((at for at, each in enumerate(items) if each["id"] == after), None)
    if at is None:
        raise _refused("after is the id of no item of this response.", "after")
    return at + 1


def _refused(message: str, param: str) -> RefusalError:
    return RefusalError(responses.error(400, message, None, param))
