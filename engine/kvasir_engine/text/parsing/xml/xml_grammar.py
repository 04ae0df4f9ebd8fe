"""Grammar of arguments that are tags, one for each parameter, as Qwen3-Coder writes them.

Strings are written as they are, other values as JSON. A parser takes a text that looks like a value
of another type for one, where the schema has that type (`schema_values.json_of`); so the strings of
a parameter that also takes, say, arrays of numbers do not begin like an array.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvasir_engine.grammar.lark import (
    ANY_TEXT,
    LarkWriter,
    Part,
    any_of,
    json_value,
    literal,
    optional,
    regex,
    sequence,
    without,
)
from kvasir_engine.grammar.schema_keywords import NUMBER, SchemaError
from kvasir_engine.grammar.schema_part import standalone
from kvasir_engine.text.parsing.schema_values import resolved, written
from kvasir_engine.text.parsing.value_types import typed_values, unnamed

PARAMETER, PARAMETER_END, FUNCTION_END = "<parameter=", "</parameter>", "</function>"
VALUE_ENDS = (PARAMETER_END, PARAMETER, FUNCTION_END)
"""Texts that end a value: its own tag, or, where a model forgot that, the next one."""
MAX_NAME_CHARS = 256
NAME = re.compile(r"[^\s<>=\"']+")
_ANY_NAME = regex(r"""[^\s\x1c-\x1f<>="']{1,64}""")
_END = literal(f"\n{PARAMETER_END}\n")
_BODY = without(VALUE_ENDS)
_WHOLE = "-?(0|[1-9][0-9]*)"
_UNBOUNDED = {
    "null": literal("null"),
    "boolean": any_of([literal("true"), literal("false")]),
    "integer": regex(_WHOLE),
    "number": regex(rf"{_WHOLE}(\.[0-9]+)?([eE][+-]?[0-9]+)?"),
}
"""Values that can stand among the strings of a terminal."""
_BEGINNINGS = {"array": r"\[", "object": r"\{", "integer": r"0-9\-", "number": r"0-9\-"}


def xml_arguments(lark: LarkWriter, schema: Mapping[str, Any]) -> Part:
    """Return the arguments of a function: its parameters in their order, or any where none are
    named. Raises SchemaError for what cannot be written so."""
    return _arguments(lark, schema, schema)


def _arguments(lark: LarkWriter, root: Mapping[str, Any], schema: Mapping[str, Any]) -> Part:
    schema = resolved(root, schema)
    if "anyOf" in schema:
        return any_of([_arguments(lark, root, each) for each in schema["anyOf"]])
    named = schema.get("properties") or {}
    required = schema.get("required") or ()
    found = []
    for name, each in named.items():
        if NAME.fullmatch(name) and len(name) <= MAX_NAME_CHARS:
            tag = sequence(literal(f"{PARAMETER}{name}>\n"), _value(lark, root, each))
            found.append(tag if name in required else optional(tag))
        elif name in required:
            where = f"#/properties/{name}"
            raise SchemaError(where, "has a name that this model's format of calls cannot have")
    return sequence(*found) if named else _unnamed(lark, root, schema)


def _unnamed(lark: LarkWriter, root: Mapping[str, Any], schema: Mapping[str, Any]) -> Part:
    """Return parameters that a schema does not name."""
    found = unnamed(schema, _ANY_NAME)
    if found is None:
        return ""
    name, values, most = found
    begin = lark.terminal(sequence(literal(PARAMETER), name, literal(">\n")))
    one = sequence(begin, _value(lark, root, values))
    return f"({one}){'*' if most is None else f'{{0,{most}}}'}"


def _value(lark: LarkWriter, root: Mapping[str, Any], schema: Mapping[str, Any]) -> Part:
    """Return a value and the end of its tag."""
    found = typed_values(root, schema)
    texts = [each for kind, each in found if kind == "string"]
    if not texts:
        return sequence(json_value(standalone(root, schema)), _END)
    bounded = []
    for kind, each in found:
        if kind in ("null", "boolean") or (kind in _UNBOUNDED and not NUMBER & each.keys()):
            texts.append({"enum": each["enum"]} if "enum" in each else {"type": kind})
        elif kind != "string":
            bounded.append((kind, each))
    text = any_of(map(_text, texts))
    if bounded:
        taken = "".join({_BEGINNINGS[kind]: None for kind, _ in bounded})
        begins = regex(rf"([^\s\x1c-\x1f{taken}](?s:.*))?")
        text = f"({text} & {begins})"
    whole = lark.terminal(f"({text} & {_BODY}) {_END}")
    values = [json_value(standalone(root, each), compact=True) for _, each in bounded]
    return any_of([whole, sequence(any_of(values), _END)]) if values else whole


def _text(schema: Mapping[str, Any]) -> Part:
    """Return what stands for a value as text, whose format is not enforced."""
    if "enum" in schema:
        return any_of(literal(written(each)) for each in schema["enum"])
    kind = schema.get("type", "string")
    if kind != "string":
        return _UNBOUNDED[kind]
    if "pattern" in schema:
        return regex(schema["pattern"])
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        return regex(rf"(?s:.){{{least},{'' if most is None else most}}}")
    return ANY_TEXT
