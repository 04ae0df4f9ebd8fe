"""Grammars of tool calls, for answers that have to call and for tools that are strict.

They are written in xgrammar's structural tags (https://xgrammar.mlc.ai/docs). A format of calls
says how one block of calls is written (`CallBlock`), from the parts that `CallGrammar` gives for
the functions of a request; whether text may stand around the blocks is the request's matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvasir_engine.grammar.constraint import MAX_WHITESPACE
from kvasir_engine.grammar.json_schema import enforceable
from kvasir_engine.grammar.schema_keywords import SchemaError
from kvasir_engine.text.parsing.markers import Markers

Tag: TypeAlias = dict[str, Any]
"""Part of a structural tag."""
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "additionalProperties": False}
_LEAD = r"\n{0,2}"
"""Line feeds that models write between their reasoning and a call."""


@dataclass(frozen=True, slots=True)
class CallBlock:
    """Calls as a format writes them: one, or an array of them."""

    opener: str
    """Marker that it begins with; "" = none, so that only the beginning of an answer may call."""
    content: Tag
    """Everything up to `end`."""
    end: str
    """Marker or text that it ends with, perhaps "" ."""
    repeated: bool
    """Other blocks may follow; else one has all calls of an answer."""


class CallGrammar:
    """Parts of grammars for the functions of one request."""

    def __init__(
        self,
        parameters: Mapping[str, Mapping[str, Any] | None],
        markers: Markers,
        *,
        one_call: bool,
    ) -> None:
        """Schemas of the functions' parameters by name; None = the function takes none."""
        self.schemas = {name: arguments_schema(it) for name, it in parameters.items()}
        """Schemas that arguments are held to, by function."""
        self._markers = markers
        self.one_call = one_call
        """Only one call is to be made."""

    def is_special(self, marker: str) -> bool:
        """Tell if a marker is a special token of the tokenizer."""
        return self._markers.token(marker) is not None

    def marker(self, text: str) -> Tag:
        """Return a marker: its token if it is a special one, else its text."""
        token = self._markers.token(text)
        return literal(text) if token is None else {"type": "token", "token": token}

    def arguments(self, name: str) -> Tag:
        """Return the arguments of a function as a JSON object."""
        return json_value(self.schemas[name])

    def each(self, write: Callable[[str], Tag]) -> Tag:
        """Return what `write` makes of a function's name, for any of the functions."""
        return any_of([write(name) for name in self.schemas])

    def call_object(self, key: str) -> Tag:
        """Return one call as an object of name and arguments, which stand under `key`."""
        return self.each(
            lambda name: sequence(literal(_head(name, key)), self.arguments(name), literal("}"))
        )

    def call_objects(self, key: str, separator: str) -> Tag:
        """Return one call or several as objects; see `call_object`."""
        return {
            "type": "tags_with_separator",
            "tags": [
                {
                    "type": "tag",
                    "begin": _head(name, key),
                    "content": self.arguments(name),
                    "end": "}",
                }
                for name in self.schemas
            ],
            "separator": separator,
            "at_least_one": True,
            "stop_after_first": self.one_call,
        }

    def required(self, block: CallBlock) -> str:
        """Return the structural tag of an answer that calls and says nothing else."""
        one = self._block(block)
        if block.repeated and not self.one_call:
            between = {"type": "optional", "content": literal("\n")}
            one = {"type": "plus", "content": sequence(one, between)}
        return _as_text(sequence({"type": "regex", "pattern": _LEAD}, one))

    def permitted(self, block: CallBlock) -> str:
        """Return the structural tag of an answer of any text, in which what begins as a call is
        one."""
        if not block.opener:
            text = {"type": "regex", "pattern": r"\s*[^{\s](.|\n)*"}
            return _as_text(any_of([self._block(block), text]))
        token = self._markers.token(block.opener)
        tags = [{"type": "tag", **self._ends(block), "content": block.content}]
        how = {"tags": tags, "stop_after_first": self.one_call}
        if token is None:
            return _as_text({"type": "triggered_tags", "triggers": [block.opener], **how})
        return _as_text({"type": "token_triggered_tags", "trigger_tokens": [token], **how})

    def _block(self, block: CallBlock) -> Tag:
        parts = [block.content]
        if block.opener:
            parts.insert(0, self.marker(block.opener))
        if block.end:
            parts.append(self.marker(block.end))
        return sequence(*parts)

    def _ends(self, block: CallBlock) -> Tag:
        """Return beginning and end of a tag, which are texts or tokens."""
        ends: Tag = {}
        for side, text in (("begin", block.opener), ("end", block.end)):
            special = bool(text) and self.is_special(text)
            ends[side] = self.marker(text) if special else text
        return ends


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
    return enforceable({**closed, **schema, "type": "object"})


def json_value(schema: Any) -> Tag:
    """Return a JSON value of a schema."""
    return {
        "type": "json_schema",
        "json_schema": schema,
        "max_whitespace_cnt": MAX_WHITESPACE,
    }


def literal(text: str) -> Tag:
    """Return a text."""
    return {"type": "const_string", "value": text}


def sequence(*parts: Tag) -> Tag:
    """Return parts one after the other."""
    return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": list(parts)}


def any_of(choices: Sequence[Tag]) -> Tag:
    """Return one of several."""
    return choices[0] if len(choices) == 1 else {"type": "or", "elements": list(choices)}


def _head(name: str, key: str) -> str:
    return f'{{"name": {json.dumps(name)}, "{key}": '


def _as_text(tag: Tag) -> str:
    """Return SamplingParams.structured_outputs."""
    whole = {"structural_tag": {"type": "structural_tag", "format": tag}}
    return json.dumps(whole, ensure_ascii=False)
