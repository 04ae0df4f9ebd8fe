"""Output items of a response, made of an answer's pieces, and the events that tell of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from kvasir_engine.text.parsing.pieces import Kind, Piece

Tell = Callable[..., None]
"""Told of each step: the event's type without `response.`, how many units of a text it adds (None
for an event that adds none), and its fields."""

_ITEMS = {
    Kind.CONTENT: ("msg", "message", "output_text"),
    Kind.REASONING: ("rs", "reasoning", "reasoning_text"),
    Kind.CALL: ("fc", "function_call", "function_call_arguments"),
}
"""Beginning of an item's id, its type, and the events of its text, by kind of its pieces."""


class OpenItem:
    """The item that grows."""

    def __init__(self, kind: Kind, index: int, made: dict[str, Any]) -> None:
        self.kind = kind
        self.index = index
        self.made = made
        self.texts: list[str] = []
        self.logprobs: list[Any] = []

    @property
    def place(self) -> dict[str, Any]:
        """Fields that say where an event about its text is."""
        made = {"item_id": self.made["id"], "output_index": self.index}
        return made if self.kind is Kind.CALL else {**made, "content_index": 0}

    def part(self) -> dict[str, Any]:
        """Return its only content part."""
        text = "".join(self.texts)
        if self.kind is Kind.REASONING:
            return {"type": "reasoning_text", "text": text}
        return {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": list(self.logprobs),
        }


class OutputItems:
    """The items so far. An item ends where a piece of another kind begins, or a call is complete.

    What is told does not depend on the cuts between pieces, but for the cuts between deltas.
    """

    def __init__(self, response_id: str, call_id: Callable[[int], str], tell: Tell) -> None:
        """`call_id` gives the id of the n-th call."""
        self.done: list[dict[str, Any]] = []
        """Items that have ended."""
        self.open: OpenItem | None = None
        self._response_id = response_id
        self._call_id = call_id
        self.tell = tell
        self._calls = 0

    def take(self, pieces: Iterable[Piece], logprobs: list[Any]) -> bool:
        """Take what an update added; `logprobs` are of its tokens. Return whether they found their
        place: a text that the update added to."""
        placed = False
        for piece in pieces:
            if piece.kind is Kind.CALL:
                self._begin(Kind.CALL, piece.text)
            elif piece.kind is Kind.CALL_END:
                self.close("completed")
            elif piece.text:
                kind = Kind.CALL if piece.kind is Kind.ARGUMENTS else piece.kind
                if self.open is None or self.open.kind is not kind:
                    self._begin(kind)
                mine = logprobs if kind is Kind.CONTENT and not placed else []
                self._grow(piece.text, mine)
                placed = True
        return placed

    def all(self) -> list[dict[str, Any]]:
        """Return every item, the open one as it is."""
        return self.done if self.open is None else [*self.done, self._whole(self.open)]

    def close(self, status: str) -> None:
        """End the open item, if there is one."""
        item = self.open
        if item is None:
            return
        self.open = None
        whole = self._whole(item, status)
        self.done.append(whole)
        text = "".join(item.texts)
        name = _ITEMS[item.kind][2]
        if item.kind is Kind.CALL:
            self.tell(f"{name}.done", None, **item.place, name=whole["name"], arguments=text)
        else:
            extra = {"logprobs": item.logprobs} if item.kind is Kind.CONTENT else {}
            self.tell(f"{name}.done", None, **item.place, text=text, **extra)
            self.tell("content_part.done", None, **item.place, part=item.part())
        self.tell("output_item.done", None, output_index=item.index, item=whole)

    def _begin(self, kind: Kind, name: str = "") -> None:
        # A call that something follows without its end was broken off.
        broken = self.open is not None and self.open.kind is Kind.CALL
        self.close("incomplete" if broken else "completed")
        index = len(self.done)
        self.open = item = OpenItem(kind, index, self._empty(kind, index, name))
        self.tell("output_item.added", None, output_index=index, item=item.made)
        if kind is not Kind.CALL:
            self.tell("content_part.added", None, **item.place, part=item.part())

    def _grow(self, text: str, logprobs: list[Any]) -> None:
        item = self.open
        if item is None:
            raise ValueError("a text came outside of any item")
        item.texts.append(text)
        item.logprobs += logprobs
        extra = {"logprobs": logprobs} if item.kind is Kind.CONTENT else {}
        self.tell(f"{_ITEMS[item.kind][2]}.delta", len(text), **item.place, delta=text, **extra)

    def _empty(self, kind: Kind, index: int, name: str) -> dict[str, Any]:
        prefix, type_, _ = _ITEMS[kind]
        digest = hashlib.blake2b(f"{self._response_id} {index}".encode(), digest_size=16)
        made: dict[str, Any] = {"id": f"{prefix}_{digest.hexdigest()}", "type": type_}
        if kind is Kind.CALL:
            call = self._call_id(self._calls)
            self._calls += 1
            made |= {"call_id": call, "name": name, "arguments": ""}
        elif kind is Kind.REASONING:
            made |= {"summary": [], "content": []}
        else:
            made |= {"role": "assistant", "content": []}
        return {**made, "status": "in_progress"}

    def _whole(self, item: OpenItem, status: str = "in_progress") -> dict[str, Any]:
        text = {"arguments": "".join(item.texts)}
        filled = text if item.kind is Kind.CALL else {"content": [item.part()]}
        return {**item.made, **filled, "status": status}
