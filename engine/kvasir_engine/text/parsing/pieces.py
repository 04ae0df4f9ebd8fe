"""Pieces that an answer's text is taken apart into, and the machines that do it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """Part of an answer that a piece belongs to."""

    CONTENT = 0
    REASONING = 1
    CALL = 2
    """A tool call begins; the text is the function's name."""
    ARGUMENTS = 3
    """A part of the JSON text of the call's arguments."""
    CALL_END = 4
    """The call is complete."""


class Piece(NamedTuple):
    """A part of the answer. The pieces of an answer, joined by kind, do not depend on its cuts."""

    kind: Kind
    text: str = ""

    @property
    def units(self) -> int:
        """Units by which it moves the answer on: its characters, and 1 for the start of a call."""
        if self.kind is Kind.CALL:
            return 1
        return 0 if self.kind is Kind.CALL_END else len(self.text)


class JoinedPieces:
    """Pieces with neighbours of a kind joined: an answer has few of these, whatever its length."""

    def __init__(self) -> None:
        self._runs: list[tuple[Kind, list[str]]] = []

    def __iter__(self) -> Iterator[Piece]:
        return (Piece(kind, "".join(texts)) for kind, texts in self._runs)

    def add(self, pieces: Iterable[Piece]) -> None:
        """Add what follows."""
        for kind, text in pieces:
            if self._runs and self._runs[-1][0] is kind and kind is not Kind.CALL:
                self._runs[-1][1].append(text)
            else:
                self._runs.append((kind, [text]))


class TextMachine:
    """Base of the state machines: text comes in any cuts, pieces go out as soon as certain.

    The machine's state is the method `_read`. It takes what it can from `_rest`, appends to
    `_pieces`, and returns True when `_read` is to be called again: it has moved on. With `_ended`
    there is no more text to wait for. What is given out after some text is always the beginning of
    what is given out after more of it, so that a machine that reads the text again stands where
    another one stood.
    """

    def __init__(self) -> None:
        self._rest = ""
        self._ended = False
        self._pieces: list[Piece] = []
        self._read: Callable[[], bool] = self._start

    def push(self, text: str) -> list[Piece]:
        """Return the pieces that became certain with `text`."""
        self._rest += text
        return self._run()

    def finish(self) -> list[Piece]:
        """Return what is left when no text follows."""
        self._ended = True
        return self._run()

    def _run(self) -> list[Piece]:
        while self._read():
            pass
        made, self._pieces = self._pieces, []
        return made

    def _start(self) -> bool:
        raise NotImplementedError

    def _emit(self, kind: Kind, text: str) -> None:
        if text:
            self._pieces.append(Piece(kind, text))


def find_first(text: str, markers: Sequence[str]) -> tuple[int, str]:
    """Return where the first of `markers` begins and which it is; "" when there is none."""
    found = [(at, marker) for marker in markers if (at := text.find(marker)) >= 0]
    return min(found) if found else (len(text), "")


def held_back(text: str, markers: Sequence[str]) -> int:
    """Return how many characters at the end of `text` may be the beginning of a marker."""
    longest = max(map(len, markers), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        tail = text[-size:]
        if any(marker.startswith(tail) for marker in markers):
            return size
    return 0
