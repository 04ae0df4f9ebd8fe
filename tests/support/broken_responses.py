"""Engines whose streams of the Responses API break."""

import json
from typing import Any

from .broken_streams import USAGE, WORDS, engine

PATH = "/v1/responses"
BODY = {"model": "m", "input": "hi", "stream": True}
DELTA = "output_text.delta"


def steps(text: str) -> list[tuple[str, dict[str, Any], int | None]]:
    """The events of an answer with the word that each one adds: event, fields, word."""
    response = {"id": "resp_1", "created_at": 17, "object": "response"}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": text}
    item = {"id": "msg_1", "type": "message", "content": [part]}
    return [
        *((name, {"response": response}, None) for name in ("created", "in_progress")),
        ("output_item.added", {"output_index": 0, "item": item}, None),
        ("content_part.added", {**place, "part": part}, None),
        *((DELTA, {**place, "delta": word}, at) for at, word in enumerate(WORDS)),
        ("output_text.done", {**place, "text": text}, None),
        ("content_part.done", {**place, "part": part}, None),
        ("output_item.done", {"output_index": 0, "item": item}, None),
        ("completed", {"response": {**response, "output": [item]}}, None),
    ]


def response_stream(body: dict[str, Any]) -> list[bytes]:
    """What a Kvasir engine answers to `body`: token n is word n; only the first event of a word has
    a comment."""
    resume = body.get("resume", {})
    skipped, units = resume.get("sent_steps", 0), resume.get("sent_chars", 0)
    number, made, first = resume.get("sent_events", 0), [], True
    for name, fields, word in steps("".join(WORDS)):
        if word is None and skipped:
            skipped -= 1
            continue
        if word is not None and units:
            units -= len(WORDS[word])
            continue
        comment: dict[str, Any] | None = None
        if first or word is not None:
            comment = {"i": 0, "t": [] if word is None else [word]}
        if first:
            comment = {**(comment or {}), "s": 5, "c": 3}
        if name == "completed":
            comment = {"u": USAGE}
        first = False
        data = {"type": f"response.{name}", "sequence_number": number, **fields}
        number += 1
        line = b"" if comment is None else b": kvasir %b\n" % _json(comment)
        made.append(line + b"event: response.%b\ndata: %b\n\n" % (name.encode(), _json(data)))
    return made


def response_engine(*, events: int | None = None, last: bytes = b"") -> Any:
    """A script: the whole stream, or its first events, `last`, and death."""
    return engine(events=events, last=last, stream=response_stream)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
