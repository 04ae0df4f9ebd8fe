"""gpt-oss's Harmony: an answer of several messages, each in a channel."""

from __future__ import annotations

import re

from kvasir_engine.text.parsing.harmony.harmony_grammar import (
    BEGIN,
    CHANNEL,
    CONSTRAIN,
    END,
    FUNCTIONS,
    MESSAGE,
)
from kvasir_engine.text.parsing.json_call import ArgumentsReader
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.pieces import Kind, TextMachine, find_first, held_back

HARMONY_STOPS = ("<|call|>", "<|return|>")
"""Tokens that end an answer."""
HARMONY_MARKERS = (BEGIN, CHANNEL, CONSTRAIN, MESSAGE, END, *HARMONY_STOPS)
_RECIPIENT = re.compile(r"\bto=([\w.:-]+)")
MAX_HEADER_CHARS = 1024


class Harmony(TextMachine):
    """`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`.

    The channel `analysis` is reasoning; messages to `functions.NAME` are calls; everything else is
    content, also what has no header, and calls where `with_tools` is False.
    """

    def __init__(self, markers: Markers, *, with_tools: bool) -> None:
        super().__init__()
        signs = markers.signs(HARMONY_MARKERS)
        self._begin_sign, self._channel_sign, self._constrain, self._message_sign = signs[:4]
        self._enders = (*signs[4:], self._begin_sign, self._channel_sign)
        self._signs = signs
        self._with_tools = with_tools
        self._kind = Kind.CONTENT
        self._given: set[Kind] = set()
        self._fresh = False
        """The message has given out nothing yet."""
        self._reader: ArgumentsReader | None = None
        self._header_text = ""
        self._held = ""
        """Text of a message that is to be a call, before its arguments."""

    def _start(self) -> bool:
        """The prompt ends behind `<|start|>assistant`: the rest of a header follows, or text."""
        if not self._rest:
            return False
        lead = (self._channel_sign, self._message_sign, self._begin_sign, " to=")
        if self._rest.startswith(lead):
            self._read = self._header
        elif not self._ended and any(each.startswith(self._rest) for each in lead):
            return False
        else:
            self._open_text(Kind.CONTENT)
        return True

    def _header(self) -> bool:
        at, found = find_first(self._rest, (self._message_sign,))
        if at > MAX_HEADER_CHARS and (found or at > MAX_HEADER_CHARS + len(self._message_sign)):
            text, self._rest = self._rest[:MAX_HEADER_CHARS], self._rest[MAX_HEADER_CHARS:]
            self._open_text(Kind.CONTENT)
            self._text(text)
            return True
        if not found:
            if self._ended:
                self._no_header()
            return False
        header = self._rest[:at]
        self._rest = self._rest[at + len(found) :]
        self._header_text = header + found
        self._open(header)
        return True

    def _no_header(self) -> None:
        """Text without a header is content; a header that is cut off says nothing."""
        text, self._rest = self._rest, ""
        self._open_text(Kind.CONTENT)
        if not any(sign in text for sign in self._signs):
            self._text(text.strip())

    def _open(self, header: str) -> None:
        channel = header.rpartition(self._channel_sign)[2] if self._channel_sign in header else ""
        name = channel.partition(self._constrain)[0].split()[:1]
        to = _RECIPIENT.search(header)
        if to and to[1].startswith(FUNCTIONS) and self._with_tools:
            self._reader = ArgumentsReader(to[1].removeprefix(FUNCTIONS))
            self._read = self._call
        else:
            self._open_text(Kind.REASONING if name == ["analysis"] else Kind.CONTENT)

    def _open_text(self, kind: Kind) -> None:
        self._kind = kind
        self._fresh = True
        self._read = self._message

    def _message(self) -> bool:
        at, ender = find_first(self._rest, self._enders)
        if ender:
            self._text(self._rest[:at])
            self._behind(at, ender)
            return True
        kept = len(self._rest) - (0 if self._ended else held_back(self._rest, self._enders))
        self._text(self._rest[:kept])
        self._rest = self._rest[kept:]
        return False

    def _text(self, text: str) -> None:
        """Give out a part of a message; messages of one kind are divided by a line break."""
        if not text:
            return
        if self._fresh and self._kind in self._given:
            text = "\n" + text
        self._fresh = False
        self._given.add(self._kind)
        self._emit(self._kind, text)

    def _behind(self, at: int, ender: str) -> None:
        """Go on behind a message's end; a header without an end before it is its own beginning."""
        opens = ender in (self._begin_sign, self._channel_sign)
        self._rest = self._rest[at if opens else at + len(ender) :]
        self._read = self._next_header

    def _next_header(self) -> bool:
        """Drop `<|start|>` and the role, up to the rest of a header."""
        if not self._rest:
            return False
        self._read = self._header
        return True

    def _call(self) -> bool:
        reader = self._reader
        if reader is None:
            raise AssertionError("no call is being read")
        at, ender = find_first(self._rest, self._enders)
        kept = at if ender or self._ended else at - held_back(self._rest, self._enders)
        text = self._rest[:kept]
        read = reader.read(text)
        self._pieces += reader.take_pieces()
        if reader.failed:
            if not reader.started:
                self._open_text(Kind.CONTENT)
                self._text(self._header_text + self._held + text)
            else:
                self._open_text(Kind.CONTENT)
                self._text(text[read:])
            self._rest = self._rest[kept:]
            self._held = ""
            return True
        self._held = "" if reader.started else self._held + text
        self._rest = self._rest[kept:]
        if reader.done:
            self._rest = text[read:] + self._rest
            self._read = self._after_call
            return True
        if ender:
            return self._no_arguments(reader, ender)
        return False

    def _after_call(self) -> bool:
        self._rest = self._rest.lstrip()
        if not self._rest:
            return False
        self._open_text(Kind.CONTENT)
        return True

    def _no_arguments(self, reader: ArgumentsReader, ender: str) -> bool:
        """The message ends before its arguments do; none at all are an empty object."""
        if not reader.started:
            reader.read("{}")
            self._pieces += reader.take_pieces()
        self._held = ""
        self._behind(0, ender)
        return True
