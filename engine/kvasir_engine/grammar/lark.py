"""Grammars in llguidance's dialect of Lark, from their parts.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md describes it. A rule is made of
parts; a terminal, which is matched as one, is made of texts and regular expressions, and only there
can two things be asked for at once (`&`) or a thing be forbidden (`~`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

from kvasir_engine.grammar.constraint import MAX_WHITESPACE

Part: TypeAlias = str
"""Expression of a rule, or of a terminal."""
ANY_TEXT: Part = "/(?s:.*)/"
_FLEXIBLE = {
    "whitespace_flexible": True,
    "whitespace_pattern": rf"[ \n]{{0,{MAX_WHITESPACE}}}",
}
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class LarkWriter:
    """Rules and terminals of one grammar. Equal ones are one."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}

    def rule(self, body: Part, *, lazy: bool = False) -> Part:
        """Return a rule that is `body`; a lazy one, of terminals alone, ends as soon as it can."""
        return self._named("lazy" if lazy else "rule", body)

    def terminal(self, body: Part) -> Part:
        """Return a terminal."""
        return self._named("TEXT", body)

    def text(self, start: Part) -> str:
        """Return the grammar of outputs that are `start`."""
        options = {"lazy": "[lazy]"}
        lines = [
            f"{name}{options.get(kind, '')}: {body}" for (kind, body), name in self._names.items()
        ]
        return "\n".join([f"start: {start}", *lines, ""])

    def _named(self, kind: str, body: Part) -> str:
        return self._names.setdefault((kind, body), f"{kind}{len(self._names)}")


def literal(text: str) -> Part:
    """Return a text."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def regex(pattern: str) -> Part:
    """Return a regular expression, of the whole of a text."""
    if not pattern:
        return literal("")
    made, escaped = [], False
    for char in pattern:
        made.append("\\/" if char == "/" and not escaped else "\\n" if char == "\n" else char)
        escaped = char == "\\" and not escaped
    return f"/{''.join(made)}/"


def token(token_id: int) -> Part:
    """Return a token, which may be a special one. A terminal has none."""
    return f"<[{token_id}]>"


def sequence(*parts: Part) -> Part:
    """Return parts one after the other."""
    return " ".join(filter(None, parts))


def any_of(choices: Iterable[Part]) -> Part:
    """Return one of several."""
    return f"({' | '.join(choices)})"


def optional(part: Part) -> Part:
    """Return a part that may be missing."""
    return f"({part})?"


def without(texts: Iterable[str]) -> Part:
    """Return any text that holds none of some: a part of a terminal."""
    held = any_of(map(literal, texts))
    return ANY_TEXT if held == "()" else f"({ANY_TEXT} & ~({ANY_TEXT} {held} {ANY_TEXT}))"


def json_value(schema: Any, *, compact: bool = False) -> Part:
    """Return a JSON value of a schema that was made enforceable; a compact one has a space behind
    commas and colons and no other, and may be one of several things that begin alike."""
    whole = {"x-guidance": _COMPACT if compact else _FLEXIBLE, **schema}
    return f"%json {json.dumps(whole, ensure_ascii=False, separators=(',', ':'))}"
