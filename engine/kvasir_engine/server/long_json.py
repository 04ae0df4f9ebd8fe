"""JSON with long lists, encoded in turns of the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kvasir_engine.server.loop_turns import LoopTurns

PART_BYTES = 64 * 1024
"""Length at which a part of a list is complete."""
_PLACE = b"\0"
"""Stand in the JSON for a list that is encoded later; no JSON has this byte."""
_encoder = msgspec.json.Encoder()


class LongList:
    """A document's list whose elements are made one by one as they are encoded; read once."""

    __slots__ = ("_elements",)

    def __init__(self, elements: Iterable[Any]) -> None:
        self._elements = elements

    def __iter__(self) -> Iterator[Any]:
        return iter(self._elements)


async def encode_in_turns(document: Any, turns: LoopTurns) -> list[bytes]:
    """Return the parts of a document's JSON. They are not joined: to copy a hundred megabytes would
    hold the loop, too."""
    (first, *others), lists = _around_lists(document)
    parts: list[bytes] = []
    buffer = bytearray(first)
    for elements, after in zip(lists, others, strict=True):
        before = b"["
        for element in elements:
            buffer += before
            before = b","
            _encoder.encode_into(element, buffer, -1)
            if len(buffer) >= PART_BYTES:
                parts.append(bytes(buffer))
                buffer.clear()
            await turns.pause()
        buffer += b"[]" if before == b"[" else b"]"
        buffer += after
    parts.append(bytes(buffer))
    return parts


def _around_lists(document: Any) -> tuple[list[bytes], list[LongList]]:
    """Return the JSON before, between and behind the document's long lists, and these."""
    lists: list[LongList] = []

    def place(value: object) -> msgspec.Raw:
        if not isinstance(value, LongList):
            raise NotImplementedError(f"{type(value).__name__} has no JSON")
        lists.append(value)
        return msgspec.Raw(_PLACE)

    return msgspec.json.encode(document, enc_hook=place).split(_PLACE), lists
