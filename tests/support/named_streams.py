"""What an engine writes of streams whose events have names, also of resumed ones."""

import json
from collections.abc import Iterable
from typing import Any

from .broken_streams import USAGE, WORDS

Step = tuple[str, dict[str, Any], int | None]
"""An event's type, its fields, and the number of the word that it adds."""


def named_stream(body: dict[str, Any], steps: Iterable[Step], *, numbered: bool) -> list[bytes]:
    """The events that a Kvasir engine answers to `body`: token n is word n; only the first event
    of a word has a comment."""
    resume = body.get("resume", {})
    skipped, units = resume.get("sent_steps", 0), resume.get("sent_chars", 0)
    number, made, first = resume.get("sent_events", 0), [], True
    *steps, last = steps
    for step in (*steps, last):
        name, fields, word = step
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
        if step is last:
            comment = {"u": USAGE}
        first = False
        data = {"type": name, **({"sequence_number": number} if numbered else {}), **fields}
        number += 1
        line = b"" if comment is None else b": kvasir %b\n" % _json(comment)
        made.append(line + b"event: %b\ndata: %b\n\n" % (name.encode(), _json(data)))
    return made


def data_of(answer: str) -> list[dict[str, Any]]:
    """The data of a stream's events."""
    lines = answer.split("\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
