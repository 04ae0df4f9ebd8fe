"""JSON with long lists and objects, encoded in turns of the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kvasir_engine.server.loop_turns import LoopTurns

PART_BYTES = 64 * 1024
"""Length at which a part of the JSON is complete."""
_PLACE = b"\0"
"""Stand in the JSON for what is encoded later; no JSON has this byte."""
_encoder = msgspec.json.Encoder()


class LongList:
    """A document's list whose elements are made one by one as they are encoded; read once."""

    __slots__ = ("_elements",)

    def __init__(self, elements: Iterable[Any]) -> None:
        self._elements = elements

    def __iter__(self) -> Iterator[Any]:
        return iter(self._elements)


class LongObject:
    """A document's object whose members are made one by one as they are encoded; read once. Of
    those that have the same name only the first is encoded."""

    __slots__ = ("_members",)

    def __init__(self, members: Iterable[tuple[str, Any]]) -> None:
        self._members = members

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        names: set[str] = set()
        for name, value in self._members:
            if name not in names:
                names.add(name)
                yield name, value


async def encode_in_turns(document: Any, turns: LoopTurns) -> list[bytes]:
    """Return the parts of a document's JSON. They are not joined: to copy a hundred megabytes would
    hold the loop, too."""
    writing = _Writing(turns)
    await writing.add(document)
    return writing.parts()


class _Writing:
    """A document's JSON in the making."""

    def __init__(self, turns: LoopTurns) -> None:
        self._turns = turns
        self._parts: list[bytes] = []
        self._buffer = bytearray()
        self._long: list[LongList | LongObject] = []
        """Those of the value that was encoded last, in their order."""
        self._encoder = msgspec.json.Encoder(enc_hook=self._place)

    def parts(self) -> list[bytes]:
        """Return all that was added."""
        return [*self._parts, bytes(self._buffer)]

    async def add(self, value: Any) -> None:
        """Append a value, whose own long lists and objects may hold further ones."""
        buffer = self._buffer
        start = len(buffer)
        self._encoder.encode_into(value, buffer, -1)
        if not self._long:
            return
        long, self._long = self._long, []
        first, *others = bytes(buffer[start:]).split(_PLACE)
        buffer[start:] = first
        for each, after in zip(long, others, strict=True):
            if isinstance(each, LongList):
                await self._add_list(each)
            else:
                await self._add_object(each)
            buffer += after

    async def _add_list(self, elements: LongList) -> None:
        before = b"["
        for element in elements:
            self._buffer += before
            before = b","
            await self._add_piece(element)
        self._buffer += b"[]" if before == b"[" else b"]"

    async def _add_object(self, members: LongObject) -> None:
        before = b"{"
        for name, value in members:
            self._buffer += before + _encoder.encode(name) + b":"
            before = b","
            await self._add_piece(value)
        self._buffer += b"{}" if before == b"{" else b"}"

    async def _add_piece(self, value: Any) -> None:
        await self.add(value)
        if len(self._buffer) >= PART_BYTES:
            self._parts.append(bytes(self._buffer))
            self._buffer.clear()
        await self._turns.pause()

    def _place(self, value: object) -> msgspec.Raw:
        if not isinstance(value, LongList | LongObject):
            raise NotImplementedError(f"{type(value).__name__} has no JSON")
        self._long.append(value)
        return msgspec.Raw(_PLACE)
