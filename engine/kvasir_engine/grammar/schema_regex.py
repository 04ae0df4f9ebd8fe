"""Regular expressions of JSON schemas, which are those of ECMA-262, as llguidance reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kvasir_engine.grammar.schema_keywords import objects_of

_COUNT = re.compile(r"\{\d+(,\d*)?\}")
_CLASS = re.compile(r"\\[dwsDWS]")
_CLASSES = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": r"\x20\t\n\r\f\v",
    "S": r"[^\s\x{1c}-\x{1f}\x{feff}]",
}
"""Classes that have more members there, by what they have here, or in Python's schemas."""
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DATE = (
    rf"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))"
    r"|([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](|\.[0-9]{1,9})"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-zA-Z0-9](|[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])"
_SHORT_LABEL = "[a-zA-Z0-9](|[a-zA-Z0-9-]{0,22}[a-zA-Z0-9])"
_POINTER = "(/([^/~]|~[01])*)*"
_VARIABLE = r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*(:[1-9][0-9]{0,3}|\*)?"
FORMATS_AS_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    # A name has at most 253 characters: three long labels, or ten short ones.
    "hostname": rf"^({_LABEL}(\.{_LABEL}){{0,2}}|{_SHORT_LABEL}(\.{_SHORT_LABEL}){{3,9}})$",
    "ipv4": rf"^({_BYTE}\.){{3}}{_BYTE}$",
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^[0-9](#|{_POINTER})$",
    "uri-template": (
        r"^([!#$&(-;=?-Z\[\]_a-z]|%[0-9A-F]{2}"
        rf"|\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*$"
    ),
}
"""Formats that a library does not know, or takes for something wider."""
_CHAR = r"(?:\\.|\[\^?(?:\\.|[^\]\\])*\]|[^()|\[\\])"
_WORD = r"(?:\\.|[^()|\[\]{}*+?\\])*"
_FLAT = re.compile(rf"(?s:{_CHAR}|\((?:\?:)?{_WORD}(?:\|{_WORD})*\)(?![*+?{{]))*")
"""Characters and classes, of any number, and choices of words."""


def xgrammar_reads(pattern: str) -> bool:
    """Return whether a pattern is one that xgrammar enforces: of what has larger groups it takes
    more than the pattern says, `(ab*)?` for one letting "b" through."""
    return pattern in FORMATS_AS_PATTERNS.values() or _FLAT.fullmatch(pattern) is not None


def lengths_as_patterns(schema: Any) -> Any:
    """Return an enforceable schema whose lengths are patterns: of strings that have only those
    xgrammar takes control characters as they are, which JSON does not."""
    if isinstance(schema, list):
        return list(map(lengths_as_patterns, schema))
    if not isinstance(schema, dict):
        return schema
    made = {
        name: each if name == "enum" else lengths_as_patterns(each) for name, each in schema.items()
    }
    bounds = [made.get(name) for name in ("minLength", "maxLength")]
    if any(isinstance(each, int) for each in bounds):
        least, most = (made.pop(name, None) for name in ("minLength", "maxLength"))
        made["pattern"] = f'^[^"]{{{least or 0},{"" if most is None else most}}}$'
    return made


def patterns_of(schema: Any) -> Iterator[str]:
    """Yield the patterns of an enforceable schema."""
    for each in objects_of(schema):
        if isinstance(pattern := each.get("pattern"), str):
            yield pattern
        if isinstance(named := each.get("patternProperties"), dict):
            yield from named


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
