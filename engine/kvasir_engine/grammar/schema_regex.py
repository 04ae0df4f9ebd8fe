"""Regular expressions of JSON schemas, which are those of ECMA-262, as llguidance reads them."""

from __future__ import annotations

import re

_COUNT = re.compile(r"\{\d+(,\d*)?\}")
_CLASS = re.compile(r"\\[dwsDWS]")
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\x20\t\n\r\f\v"}
"""Classes that have more members there, by what they have here."""


def portable(pattern: str) -> str:
    """Return an expression that matches no more there than `pattern` matches here. Raises
    ValueError for some of those that are none; the library refuses the others."""
    return "".join(_Reader(pattern).parts())


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._inside = False
        """Within a class."""
        self._depth = 0
        """Groups that are open."""

    def parts(self) -> list[str]:
        made: list[str] = []
        while self._at < len(self._pattern):
            made.append(self._next(made[-1] if made else ""))
        if self._inside or self._depth or made[-1:] == ["\\"]:
            raise ValueError("a class, a group or an escape has no end")
        return made

    def _next(self, before: str) -> str:
        char = self._pattern[self._at]
        if char == "\\":
            return self._escape(self._take(2)[1:])
        if self._inside:
            return self._in_class(self._take(1), before)
        if char == "[":
            self._inside = True
            return self._take(2 if self._pattern.startswith("[^", self._at) else 1)
        self._depth += {"(": 1, ")": -1}.get(char, 0)
        if self._depth < 0:
            raise ValueError("a group has no beginning")
        if char == "{":
            count = _COUNT.match(self._pattern, self._at)
            return self._take(len(count.group())) if count else "\\" + self._take(1)
        return "\\}" if self._take(1) == "}" else char

    def _take(self, size: int) -> str:
        taken = self._pattern[self._at : self._at + size]
        self._at += len(taken)
        return taken

    def _escape(self, char: str) -> str:
        if members := _CLASSES.get(char):
            return members if self._inside else f"[{members}]"
        return char if char in ("<", ">") else "\\" + char

    def _in_class(self, char: str, before: str) -> str:
        """A member of a class, where some characters are operators there."""
        if char == "]":
            self._inside = False
            return char
        if char == "-":
            first = before in ("[", "[^", "-", *_CLASSES.values())
            return "\\-" if first or _CLASS.match(self._pattern, self._at) else char
        return "\\" + char if char in "[&~" else char
