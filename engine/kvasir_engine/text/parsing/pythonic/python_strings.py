"""Strings of Python source, read a character at a time and given out as those of JSON."""

from __future__ import annotations

import json

_SIMPLE = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "/": "/",  # JSON's; Python would keep the backslash
    "\n": "",
}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_HEX = frozenset("0123456789abcdefABCDEF")
_OCTAL = frozenset("01234567")
_MAX_OCTAL = 3


class PythonString:
    """One string, from behind its first quote on; a line break within is taken as it is."""

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._size: int | None = None
        """Quotes that end it, 1 or 3; None = those at its beginning are still counted."""
        self._run = 1
        """Quotes in a row."""
        self._escape = ""
        self.done = False
        self.is_behind = False
        """The last character only showed that the string had ended before it."""

    @property
    def is_plain(self) -> bool:
        """True where text follows, up to the next quote or backslash."""
        return self._size is not None and not (self._run or self._escape)

    def take(self, char: str) -> str | None:
        """Return what a character adds, as JSON; None where it cannot be the string's."""
        if self._size is None:
            if char == self._quote:
                self._run += 1
                if self._run == 3:
                    self._size, self._run = 3, 0
                return ""
            if self._run == 2:
                self.done = self.is_behind = True
                return ""
            self._size, self._run = 1, 0
        return self._escaped(char) if self._escape else self._inside(char, self._size)

    def _inside(self, char: str, size: int) -> str:
        if char == self._quote:
            self._run += 1
            self.done = self._run == size
            return ""
        before, self._run = self._quote * self._run, 0
        if char == "\\":
            self._escape = char
            return as_json(before)
        return as_json(before + char)

    def _escaped(self, char: str) -> str | None:
        escape = self._escape = self._escape + char
        kind = escape[1]
        if kind in _HEX_DIGITS:
            if len(escape) > 2 and char not in _HEX:
                return None
            return self._code(escape[2:], 16) if len(escape) == 2 + _HEX_DIGITS[kind] else ""
        if kind in _OCTAL:
            return self._octal(escape)
        if kind == "N":
            return None  # names of characters are not looked up
        self._escape = ""
        return as_json(_SIMPLE.get(char, escape))

    def _octal(self, escape: str) -> str | None:
        if escape[-1] in _OCTAL:
            return self._code(escape[1:], 8) if len(escape) == 1 + _MAX_OCTAL else ""
        made = self._code(escape[1:-1], 8)
        after = self.take(escape[-1])
        return None if made is None or after is None else made + after

    def _code(self, digits: str, base: int) -> str | None:
        self._escape = ""
        number = int(digits, base)
        return None if number > 0x10FFFF else as_json(chr(number))


def as_json(text: str) -> str:
    """Return a text as a part of a JSON string; half a surrogate pair is an escape."""
    made = json.dumps(text, ensure_ascii=False)
    if not made.isascii() and any("\ud800" <= char <= "\udfff" for char in made):
        made = json.dumps(text)
    return made[1:-1]
