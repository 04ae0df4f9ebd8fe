"""Engines whose streams of the Responses API break."""

from typing import Any

from .broken_streams import WORDS, engine
from .named_streams import Step, named_stream

PATH = "/v1/responses"
BODY = {"model": "m", "input": "hi", "stream": True}


def steps(text: str) -> list[Step]:
    """The events of an answer with the word that each one adds."""
    response = {"id": "resp_1", "created_at": 17, "object": "response"}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": text}
    item = {"id": "msg_1", "type": "message", "content": [part]}
    made: list[Step] = [
        *((name, {"response": response}, None) for name in ("created", "in_progress")),
        ("output_item.added", {"output_index": 0, "item": item}, None),
        ("content_part.added", {**place, "part": part}, None),
        *(("output_text.delta", {**place, "delta": word}, at) for at, word in enumerate(WORDS)),
        ("output_text.done", {**place, "text": text}, None),
        ("content_part.done", {**place, "part": part}, None),
        ("output_item.done", {"output_index": 0, "item": item}, None),
        ("completed", {"response": {**response, "output": [item]}}, None),
    ]
    return [(f"response.{name}", fields, word) for name, fields, word in made]


def response_stream(body: dict[str, Any]) -> list[bytes]:
    """The events that a Kvasir engine answers to `body`."""
    return named_stream(body, steps("".join(WORDS)), numbered=True)


def response_engine(*, events: int | None = None, last: bytes = b"") -> Any:
    """A script: the whole stream, or its first events, `last`, and death."""
    return engine(events=events, last=last, stream=response_stream)
