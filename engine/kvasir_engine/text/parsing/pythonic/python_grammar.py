"""Grammar of calls in Python's form.

Strings that have no shape of their own stand in either kind of quotes, True, False and None are
Python's or JSON's; all other values are written as JSON, which the reader takes as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvasir_engine.grammar.lark import (
    LarkWriter,
    Part,
    any_of,
    json_value,
    literal,
    optional,
    regex,
    sequence,
)
from kvasir_engine.grammar.schema_keywords import STRING, SchemaError
from kvasir_engine.grammar.schema_part import standalone
from kvasir_engine.text.parsing.call_grammar import SPACE, CallGrammar
from kvasir_engine.text.parsing.pythonic.python_reader import KEY, MAX_KEY_CHARS
from kvasir_engine.text.parsing.schema_values import resolved
from kvasir_engine.text.parsing.value_types import alternatives, typed_values, unnamed

_COMMA = regex(", ?")
_ANY_KEY = regex("[A-Za-z_][A-Za-z0-9_]{0,63}")
_STRING = any_of(
    regex(rf"{quote}([^{quote}\\\x00-\x1f\x7f]|\\[\\'\"nrt])*{quote}") for quote in ("'", '"')
)
_CONSTANTS = {"boolean": ("True", "False", "true", "false"), "null": ("None", "null")}
_WRITTEN = {True: ("True", "true"), False: ("False", "false"), None: ("None", "null")}


def python_list(calls: CallGrammar) -> Part:
    """Return the calls of an answer as a list, whose beginning is a token of the grammar's up to
    where no other text may go on: there the lexer has to know what it reads."""
    first = sequence(_call(calls, "["), _further(calls, calls.lark.terminal(_COMMA)))
    return sequence(first, literal("]"))


def python_calls(calls: CallGrammar) -> Part:
    """Return the calls of an answer as lines of code."""
    lines = sequence(_call(calls, "\n"), _further(calls, literal("\n")))
    return sequence(lines, literal("\n"))


def python_start(calls: CallGrammar) -> Part:
    """Return a text with which a list of calls begins: a part of a terminal."""
    names = any_of(map(literal, calls.schemas))
    if calls.loose:
        return sequence(literal("["), names, literal("("))
    space = f"[{SPACE}]*"
    begin = regex(rf"{space}\[{space}(print{space}\({space})?(default_api\.)?")
    return sequence(begin, names, regex(rf"{space}\("))


def _further(calls: CallGrammar, between: Part) -> Part:
    return "" if calls.one_call else f"({between} {_call(calls, '')})*"


def _call(calls: CallGrammar, before: str) -> Part:
    return calls.each(
        lambda name: sequence(literal(f"{before}{name}("), _given(calls, name), literal(")"))
    )


def _given(calls: CallGrammar, name: str) -> Part:
    schema = calls.schemas[name]
    try:
        return _arguments(calls.lark, schema, schema)
    except SchemaError:
        if name in calls.strict:
            raise
        return _arguments(calls.lark, {}, {})


def _arguments(lark: LarkWriter, root: Mapping[str, Any], schema: Mapping[str, Any]) -> Part:
    schema = resolved(root, schema)
    if "anyOf" in schema:
        return any_of([_arguments(lark, root, each) for each in schema["anyOf"]])
    named = schema.get("properties") or {}
    if not named:
        return _unnamed(lark, root, schema)
    found = []
    for name, each in named.items():
        is_required = name in (schema.get("required") or ())
        if KEY.fullmatch(name) and len(name) <= MAX_KEY_CHARS:
            pair = sequence(literal(f"{name}="), _value(lark, root, each))
            found.append((pair, is_required))
        elif is_required:
            where = f"#/properties/{name}"
            raise SchemaError(where, "has a name that this model's format of calls cannot have")
    return _in_order(lark, found)


def _in_order(lark: LarkWriter, pairs: Sequence[tuple[Part, bool]]) -> Part:
    """Return arguments with commas between them, each of which is required or may be missing."""
    comma = lark.terminal(_COMMA)
    first: Part = ""
    behind: Part = ""
    for pair, is_required in reversed(pairs):
        here, further = sequence(pair, behind), sequence(comma, pair, behind)
        if is_required:
            first, behind = here, further
        else:
            first = any_of([here, first]) if first else optional(here)
            behind = any_of([further, behind]) if behind else optional(further)
        first, behind = lark.rule(first), lark.rule(behind)
    return first


def _unnamed(lark: LarkWriter, root: Mapping[str, Any], schema: Mapping[str, Any]) -> Part:
    """Return arguments that a schema does not name."""
    found = unnamed(schema, _ANY_KEY)
    if found is None:
        return ""
    key, values, most = found
    begin = lark.terminal(sequence(key, literal("=")))
    pair = lark.rule(sequence(begin, _value(lark, root, values)))
    more = "*" if most is None else f"{{0,{most - 1}}}"
    return f"({pair} ({lark.terminal(_COMMA)} {pair}){more})?"


def _value(lark: LarkWriter, root: Mapping[str, Any], schema: Mapping[str, Any]) -> Part:
    found: list[Part] = []
    for part in alternatives(root, schema, set()):
        if "type" not in part and "enum" not in part:
            found.append(json_value(standalone(root, part)))
        for kind, each in typed_values(root, part):
            found.append(_of_type(lark, root, kind, each))
    return any_of(dict.fromkeys(found))


def _of_type(
    lark: LarkWriter, root: Mapping[str, Any], kind: str, schema: Mapping[str, Any]
) -> Part:
    if "enum" in schema:
        return any_of(map(literal, _spellings(schema["enum"][0])))
    if kind in _CONSTANTS:
        return any_of(map(literal, _CONSTANTS[kind]))
    if kind == "string" and not STRING & schema.keys():
        return lark.terminal(_STRING)
    return json_value(standalone(root, schema))


def _spellings(value: Any) -> list[str]:
    """Return the ways in which one value may be written."""
    if value is None or isinstance(value, bool):
        return list(_WRITTEN[value])
    made = [json.dumps(value, ensure_ascii=False)]
    if isinstance(value, str) and value.isprintable() and not {"'", "\\"} & {*value}:
        made.append(f"'{value}'")
    return made
