"""Grammars of tool calls, for answers that have to call and for tools that are strict.

A format of calls says how one block of calls is written (`CallBlock`), from the parts that
`CallGrammar` gives for the functions of a request; whether text may stand around the blocks is the
request's matter. In free text the marker of a block, and nothing else, begins a call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvasir_engine.grammar.json_schema import enforceable
from kvasir_engine.grammar.lark import (
    ANY_TEXT,
    LarkWriter,
    Part,
    any_of,
    json_value,
    literal,
    regex,
    sequence,
    token,
    without,
)
from kvasir_engine.grammar.schema_keywords import SchemaError
from kvasir_engine.text.parsing.markers import Markers

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "additionalProperties": False}
_LEAD = regex(r"\n{0,2}")
"""Line feeds that models write between their reasoning and a call."""
_BETWEEN = regex(r"\n?")
SPACE = r"\s\x1c-\x1f"
"""Members of a class: white space, as a parser has it."""
_SEPARATED = regex(rf"[{SPACE}]*,(?s:.*)")
"""Text behind a call without an end of its own that leads a parser to a further one."""
OBJECT = '{"name": '
"""Beginning of a call that is an object."""
OBJECT_START = regex(rf"[{SPACE}]*\{{")
"""Text with which an object begins."""


@dataclass(frozen=True, slots=True)
class CallBlock:
    """Calls as a format writes them: one, or an array of them."""

    opener: str
    """Marker that it begins with; "" = none: only calls without a marker are written."""
    content: Part
    """Everything up to `end`."""
    end: str
    """Marker or text that it ends with, perhaps "" ."""
    repeated: bool
    """Other blocks may follow; else one has all calls of an answer."""
    openers: Sequence[str] = ()
    """All markers with which the format's calls may begin; free text holds none of them."""
    bare: Part = ""
    """All calls of an answer that begins with them, without a marker."""
    start: Part = ""
    """Part of a terminal: the text with which such an answer begins, and no other."""


@dataclass(frozen=True, slots=True)
class CallForms:
    """Answers of a format that is more than calls in text."""

    required: Part
    """Those that call and say nothing else."""
    permitted: Part
    """Those that may call."""
    content: Part
    """Before content of a form, where an answer does not call."""


class CallGrammar:
    """Parts of grammars for the functions of one request."""

    def __init__(
        self,
        parameters: Mapping[str, Mapping[str, Any] | None],
        markers: Markers,
        *,
        one_call: bool,
        strict: Collection[str] = (),
        loose: bool = False,
    ) -> None:
        """Schemas of the functions' parameters by name, None = the function takes none; the names
        of those whose arguments must keep to them. With `loose` arguments are any object."""
        self.schemas: dict[str, Any] = {
            name: dict(_ANY_OBJECT) if loose else arguments_schema(it)
            for name, it in parameters.items()
        }
        """Schemas that arguments are held to, by function."""
        self.strict = strict
        self.loose = loose
        """Only what is sure to be a call is one: nobody asked for calls of a form."""
        self.lark = LarkWriter()
        """Rules and terminals, also those that a format needs."""
        self.markers = markers
        """Markers of the format."""
        self.one_call = one_call
        """Only one call is to be made."""

    def is_special(self, marker: str) -> bool:
        """Tell if a marker is a special token of the tokenizer."""
        return self.markers.token(marker) is not None

    def marker(self, text: str) -> Part:
        """Return a marker: its token if it is a special one, else its text."""
        special = self.markers.token(text)
        return literal(text) if special is None else token(special)

    def arguments(self, name: str) -> Part:
        """Return the arguments of a function as a JSON object."""
        return self.lark.rule(json_value(self.schemas[name]))

    def each(self, write: Callable[[str], Part]) -> Part:
        """Return what `write` makes of a function's name, for any of the functions."""
        return self.lark.rule(any_of([write(name) for name in self.schemas]))

    def call_object(self, key: str, heads: Sequence[str] = (OBJECT,)) -> Part:
        """Return one call as an object of name and arguments, which stand under `key`; the object
        begins with one of `heads` and the name."""

        def write(name: str) -> Part:
            begun = [literal(f'{head}{json.dumps(name)}, "{key}": ') for head in heads]
            head = any_of(begun) if len(begun) > 1 else begun[0]
            return sequence(head, self.arguments(name), literal("}"))

        return self.each(write)

    def call_objects(self, key: str, separator: str, heads: Sequence[str] = (OBJECT,)) -> Part:
        """Return one call or several as objects; see `call_object`."""
        one = self.call_object(key, heads)
        return one if self.one_call else f"{one} ({literal(separator)} {one})*"

    def required(self, block: CallBlock | CallForms) -> str:
        """Return the form of an answer that calls and says nothing else."""
        return self._form(self._calls(block))

    def either(self, block: CallBlock | CallForms, content: Part) -> str | None:
        """Return the form of an answer that calls and says nothing else, or is `content`; None for
        calls without a marker: what begins as one could not become content that begins alike."""
        if isinstance(block, CallBlock) and block.bare:
            return None
        before = block.content if isinstance(block, CallForms) else ""
        other = sequence(before, self.lark.rule(content))
        return self._form(any_of([self._calls(block), other]))

    def _calls(self, block: CallBlock | CallForms) -> Part:
        if isinstance(block, CallForms):
            return block.required
        found = [block.bare] if block.bare else []
        if block.opener:
            one = sequence(self.marker(block.opener), self._rest(block))
            if block.repeated and not self.one_call:
                one = f"({one} {self.lark.terminal(_BETWEEN)})+"
            found.append(one)
        return sequence(self.lark.terminal(_LEAD), any_of(found))

    def permitted(self, block: CallBlock | CallForms) -> str:
        """Return the form of an answer of any text, in which what begins as a call is one."""
        if isinstance(block, CallForms):
            return self._form(block.permitted)
        barred = {each for each in (block.opener, *block.openers) if each}
        text = without(sorted(each for each in barred if not self.is_special(each)))
        first = f"{text} & ~({block.start} {ANY_TEXT})" if block.start else text
        found = [block.bare] if block.bare else []
        if block.opener:
            found.append(self._marked(block, first, text))
        return self._form(any_of([*found, self.lark.terminal(first)]))

    def _marked(self, block: CallBlock, first: Part, text: Part) -> Part:
        """Return calls behind their markers, in text."""
        begun, rest = self._opened(block, first), self._rest(block)
        if self.one_call:
            return sequence(begun, rest)
        behind = text if block.end else f"{text} & ~{_SEPARATED}"
        calls = f"{begun} {rest} ({self._opened(block, behind)} {rest})*"
        return sequence(calls, self.lark.terminal(behind))

    def _opened(self, block: CallBlock, text: Part) -> Part:
        """Return a terminal, and the opener of a block."""
        if self.is_special(block.opener):
            return sequence(self.lark.terminal(text), self.marker(block.opener))
        return self.lark.rule(f"({text}) {literal(block.opener)}", lazy=True)

    def _rest(self, block: CallBlock) -> Part:
        return sequence(block.content, self.marker(block.end) if block.end else "")

    def _form(self, start: Part) -> str:
        """Return SamplingParams.structured_outputs."""
        return json.dumps({"lark": self.lark.text(start)}, ensure_ascii=False)


def arguments_schema(schema: Mapping[str, Any] | None) -> Any:
    """Return what a function's arguments are held to: its schema, or any object where that cannot
    be enforced.

    Parameters that are not named are not invented: `additionalProperties` is false unless the
    schema says otherwise.
    """
    if schema is None:
        return dict(_NO_ARGUMENTS)
    try:
        return strict_schema(schema)
    except SchemaError:
        return dict(_ANY_OBJECT)


def strict_schema(schema: Mapping[str, Any]) -> Any:
    """Return what a strict function's arguments are held to. Raises SchemaError."""
    if schema.get("type", "object") != "object":
        raise SchemaError("#/type", "must be object, since arguments are one")
    named = "properties" in schema and not schema.keys() & {"allOf", "anyOf", "oneOf", "$ref"}
    closed = {"additionalProperties": False} if named else {}
    return enforceable({**closed, **schema, "type": "object"}, in_calls=True)
