"""Bodies of the Responses API whose conversation the router knows.

A body's JSON is taken apart into its members, of which only `input` is read; the others stay as
they came.
"""

from typing import Any

import msgspec

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class _Answer(msgspec.Struct):
    id: str
    status: str = ""
    output: list[msgspec.Raw] = []


class _LastEvent(msgspec.Struct):
    response: msgspec.Raw


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_event = msgspec.json.Decoder(_LastEvent).decode
_KEPT = ("completed", "incomplete")


def continued(body: bytes, response: bytes, items: bytes) -> bytes:
    """Return the body with the items of an earlier response, and its output, before its own input.
    Raises msgspec.MsgspecError."""
    members = _decode_members(body)
    earlier = [*_decode_items(items), *_decode_answer(response).output]
    members["input"] = msgspec.Raw(_encode([*earlier, *_items_of(members.get("input"))]))
    return _encode(members)


def input_items(body: bytes) -> bytes:
    """Return the JSON list of a body's input items. Raises msgspec.MsgspecError."""
    return _encode(_items_of(_decode_members(body).get("input")))


def _items_of(given: msgspec.Raw | None) -> list[Any]:
    if given is None:
        return []
    if bytes(given).lstrip().startswith(b"["):
        return list(_decode_items(given))
    text = msgspec.json.decode(given)
    return [] if text is None else [{"type": "message", "role": "user", "content": text}]


def id_to_keep(response: bytes) -> str | None:
    """Return the id of a response; None for one that failed. Raises msgspec.MsgspecError."""
    answer = _decode_answer(response)
    return answer.id if answer.status in _KEPT else None


def response_of_events(events: bytes) -> bytes:
    """Return the response in the last event of a stream. Raises msgspec.MsgspecError and
    ValueError."""
    data = events[events.rindex(b"\ndata: ") + len(b"\ndata: ") :]
    return bytes(_decode_event(data.strip()).response)
