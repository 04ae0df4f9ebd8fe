"""Reading of JSON a character at a time, refused at the first character that cannot be."""

from __future__ import annotations

import re
from enum import IntEnum

MAX_DEPTH = 256
"""Arrays and objects within each other; clients' own decoders refuse not much more."""

_SPACE = " \t\n\r"
_CLOSERS = {"{": "}", "[": "]"}
_WORDS = ("true", "false", "null")
JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_NUMBER_START = re.compile(
    r"-?(?:(?:0|[1-9]\d*)(?:\.(?:\d+(?:[eE](?:[+-]?\d*)?)?)?|[eE](?:[+-]?\d*)?)?)?", re.ASCII
)
_HEX = frozenset("0123456789abcdefABCDEF")


class At(IntEnum):
    """State of a scanner: the part of JSON that it expects, or is in."""

    VALUE = 0
    VALUE_OR_END = 1
    KEY = 2
    KEY_OR_END = 3
    COLON = 4
    NEXT = 5
    """A comma or the end of the array or object."""
    KEY_STRING = 6
    STRING = 7
    ESCAPE = 8
    LITERAL = 9
    DONE = 10


class JsonScanner:
    """Strict but for control characters within strings, which models write and callers escape."""

    __slots__ = ("_hex_left", "_literal", "_stack", "_string", "state")

    def __init__(self) -> None:
        self.state = At.VALUE
        self._stack: list[str] = []
        self._string = At.STRING
        self._literal = ""
        self._hex_left = 0

    @property
    def depth(self) -> int:
        """Arrays and objects that are open."""
        return len(self._stack)

    def step(self, char: str) -> bool:
        """Take one character; False when no JSON goes on with it. After DONE only space may come.

        A number at the top has no end of its own; objects and arrays do.
        """
        state = self.state
        if state in (At.STRING, At.KEY_STRING):
            return self._in_string(char)
        if state is At.ESCAPE:
            return self._escape(char)
        if state is At.LITERAL:
            if char.isalnum() or char in "+-.":
                return self._literal_goes_on(char)
            if not self._literal_ends():
                return False
            self._value_ends()
        return char in _SPACE or self._token(char)

    def _token(self, char: str) -> bool:
        state = self.state
        if state in (At.VALUE, At.VALUE_OR_END):
            return self._value(char)
        if state in (At.KEY, At.KEY_OR_END):
            if char == '"':
                self.state = self._string = At.KEY_STRING
                return True
            return state is At.KEY_OR_END and self._close(char)
        if state is At.COLON:
            self.state = At.VALUE
            return char == ":"
        if state is At.NEXT:
            if char == ",":
                self.state = At.KEY if self._stack[-1] == "{" else At.VALUE
                return True
            return self._close(char)
        return False

    def _value(self, char: str) -> bool:
        if char in _CLOSERS:
            if len(self._stack) == MAX_DEPTH:
                return False
            self._stack.append(char)
            self.state = At.KEY_OR_END if char == "{" else At.VALUE_OR_END
            return True
        if char == '"':
            self.state = self._string = At.STRING
            return True
        if self.state is At.VALUE_OR_END and char == "]":
            return self._close(char)
        self._literal = ""
        self.state = At.LITERAL
        return self._literal_goes_on(char)

    def _close(self, char: str) -> bool:
        if char != _CLOSERS[self._stack[-1]]:
            return False
        self._stack.pop()
        self._value_ends()
        return True

    def _value_ends(self) -> None:
        self.state = At.NEXT if self._stack else At.DONE

    def _in_string(self, char: str) -> bool:
        if char == "\\":
            self.state = At.ESCAPE
        elif char == '"':
            if self._string is At.KEY_STRING:
                self.state = At.COLON
            else:
                self._value_ends()
        return True

    def _escape(self, char: str) -> bool:
        if self._hex_left:
            self._hex_left -= 1
            if not self._hex_left:
                self.state = self._string
            return char in _HEX
        if char == "u":
            self._hex_left = 4
            return True
        self.state = self._string
        return char in '"\\/bfnrt'

    def _literal_goes_on(self, char: str) -> bool:
        text = self._literal = self._literal + char
        return any(word.startswith(text) for word in _WORDS) or bool(_NUMBER_START.fullmatch(text))

    def _literal_ends(self) -> bool:
        return self._literal in _WORDS or bool(JSON_NUMBER.fullmatch(self._literal))


def is_object(text: str) -> bool:
    """Return whether `text` is one JSON object."""
    scanner = JsonScanner()
    return text.lstrip()[:1] == "{" and all(map(scanner.step, text)) and scanner.state is At.DONE


def is_unicode(text: str) -> bool:
    """Return whether `text` can be sent: an escape may have made half a surrogate pair of it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
