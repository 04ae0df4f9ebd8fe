"""Engines whose streams of the Messages API break."""

from typing import Any

from .broken_streams import WORDS, engine
from .named_streams import Step, named_stream

PATH = "/v1/messages"
BODY = {
    "model": "m",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
}
_KINDS = (("thinking", "thinking"), ("text", "text"), ("input_json", "partial_json"))
"""Beginnings of the types of deltas, and their fields: two words for each block."""
_BLOCKS = (
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "text", "text": ""},
    {"type": "tool_use", "id": "call_1", "name": "f", "input": {}},
)


def steps() -> list[Step]:
    """The events of an answer that thinks, writes and calls, with the word that each one adds."""
    made: list[Step] = [("message_start", {"message": {"id": "msg_1", "content": []}}, None)]
    for at, (block, (kind, field)) in enumerate(zip(_BLOCKS, _KINDS, strict=True)):
        place = {"index": at}
        made.append(("content_block_start", {**place, "content_block": block}, None))
        if at == 0:
            made.append(("ping", {}, None))
        for word in (2 * at, 2 * at + 1):
            delta = {"type": f"{kind}_delta", field: WORDS[word]}
            made.append(("content_block_delta", {**place, "delta": delta}, word))
        made.append(("content_block_stop", place, None))
    usage = {"input_tokens": 4, "output_tokens": len(WORDS)}
    end = {"stop_reason": "tool_use", "stop_sequence": None}
    return [
        *made,
        ("message_delta", {"delta": end, "usage": usage}, None),
        ("message_stop", {}, None),
    ]


def message_stream(body: dict[str, Any]) -> list[bytes]:
    """The events that a Kvasir engine answers to `body`."""
    return named_stream(body, steps(), numbered=False)


def message_engine(*, events: int | None = None, last: bytes = b"") -> Any:
    """A script: the whole stream, or its first events, `last`, and death."""
    return engine(events=events, last=last, stream=message_stream)
