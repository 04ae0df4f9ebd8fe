"""One literal of Python source, read a character at a time and given out as JSON.

Nothing is evaluated: there are strings, numbers, True, False, None and JSON's names for these, in
lists, tuples and dictionaries.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from enum import IntEnum

from kvasir_engine.text.parsing.json_scanner import JSON_NUMBER
from kvasir_engine.text.parsing.pythonic.python_strings import PythonString, as_json

MAX_NESTING = 64
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_CONSTANTS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_FRACTION = re.compile(r"^[+-]?[\d_]*(\.|[\d_]e)", re.ASCII | re.IGNORECASE)
_PLAIN = re.compile(r"[^'\"\\]+")
_BARE = re.compile(r"[\w.+-]", re.ASCII)


class _At(IntEnum):
    """State of a value: the part that it expects, or is in."""

    VALUE = 0
    BARE = 1
    """A number or a constant."""
    STRING = 2
    BEHIND = 3
    """A value is complete, or is a string that goes on in another one."""


@dataclass(slots=True)
class _Open:
    """A list, tuple or dictionary that is open."""

    closer: str
    commas: int = 0
    is_key: bool = False
    """A key of a dictionary is read, or its beginning."""


class PythonValue:
    """A value, up to the comma or bracket behind it."""

    def __init__(self) -> None:
        self.json: list[str] = []
        """Parts that were read, without what may still go on; whoever likes takes them away."""
        self.is_text = False
        """It is a string."""
        self.is_null = False
        self._at = _At.VALUE
        self._open: list[_Open] = []
        self._bare = ""
        self._string = PythonString("")
        self._unclosed = False
        """A string has no quote behind it yet."""

    def take(self, char: str) -> bool | None:
        """Take a character: True if it is the value's, None if the value has ended before it, False
        if there is no such value."""
        if self._at is _At.STRING:
            return self._in_string(char)
        if self._at is _At.BARE:
            if _BARE.fullmatch(char):
                self._bare += char
                return True
            if not self._bare_ends():
                return False
        if char.isspace():
            return True
        return self._begin(char) if self._at is _At.VALUE else self._behind(char)

    def take_run(self, text: str, at: int, end: int) -> int:
        """Take what stands within a string from place `at` up to `end`, as far as it is plain;
        return how many characters that are."""
        if self._at is not _At.STRING or not self._string.is_plain:
            return 0
        run = _PLAIN.match(text, at, end)
        if run is None:
            return 0
        self.json.append(as_json(run.group()))
        return len(run.group())

    def _in_string(self, char: str) -> bool | None:
        made = self._string.take(char)
        if made is None:
            return False
        self.json.append(made)
        if not self._string.done:
            return True
        self._at = _At.BEHIND
        return self.take(char) if self._string.is_behind else True

    def _begin(self, char: str) -> bool:
        top = self._open[-1] if self._open else None
        if top is not None:
            in_value = top.closer == "}" and not top.is_key
            if char == top.closer and not in_value:
                return self._close()
            if top.commas and not in_value:
                self.json.append(", ")
        if char in _CLOSERS:
            return self._nest(char)
        if char in "'\"":
            self.is_text = self.is_text or top is None
            self._unclosed = True
            self.json.append('"')
            self._quote(char)
            return True
        self._bare, self._at = char, _At.BARE
        return bool(_BARE.fullmatch(char))

    def _quote(self, char: str) -> None:
        self._string, self._at = PythonString(char), _At.STRING

    def _nest(self, char: str) -> bool:
        if self._open and self._open[-1].is_key:
            return False
        self._open.append(_Open(_CLOSERS[char], is_key=char == "{"))
        self.json.append("{" if char == "{" else "[")
        return len(self._open) <= MAX_NESTING

    def _close(self) -> bool:
        self.json.append("}" if self._open.pop().closer == "}" else "]")
        self._at = _At.BEHIND
        return True

    def _behind(self, char: str) -> bool | None:
        if self._unclosed:
            if char in "'\"":  # strings behind each other are one
                self._quote(char)
                return True
            self._unclosed = False
            self.json.append('"')
        if not self._open:
            return None if char in ",)" else False
        top = self._open[-1]
        if top.is_key:
            top.is_key, self._at = False, _At.VALUE
            self.json.append(": ")
            return char == ":"
        if char == ",":
            top.commas += 1
            top.is_key, self._at = top.closer == "}", _At.VALUE
            return True
        return char == top.closer and self._close()

    def _bare_ends(self) -> bool:
        made = _CONSTANTS.get(self._bare) or _number(self._bare)
        if made is None:
            return False
        is_key = bool(self._open) and self._open[-1].is_key
        self.is_null = made == "null" and not self._open
        self.json.append(f'"{made}"' if is_key else made)
        self._at = _At.BEHIND
        return True


def _number(text: str) -> str | None:
    """Return a number as JSON has it; None for one that JSON has not."""
    if JSON_NUMBER.fullmatch(text):
        return text
    try:
        if _FRACTION.search(text):
            number = float(text)
            return json.dumps(number) if math.isfinite(number) else None
        return str(int(text, 0))
    except ValueError:
        return None
