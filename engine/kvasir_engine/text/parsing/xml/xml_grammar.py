"""Grammar of arguments that are tags, one for each parameter, as Qwen3-Coder writes them.

The library has such grammars, too; but they let white space stand around a value, which would
belong to a string.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvasir_engine.text.parsing.call_grammar import Tag, any_of, json_value, literal, sequence
from kvasir_engine.text.parsing.schema_values import ValueForm, resolved, written

PARAMETER, PARAMETER_END, FUNCTION_END = "<parameter=", "</parameter>", "</function>"
VALUE_ENDS = (PARAMETER_END, PARAMETER, FUNCTION_END)
"""Texts that end a value: its own tag, or, where a model forgot that, the next one."""


def xml_arguments(schema: Mapping[str, Any]) -> list[Tag]:
    """Return the arguments of a function: its parameters in their order, or any where none are
    named."""
    named = schema.get("properties") or {}
    required = schema.get("required") or ()
    if not named and schema.get("additionalProperties") is not False:
        any_name = {"type": "regex", "pattern": r"[^\s<>=\"']+"}
        return [{"type": "star", "content": _parameter(any_name, _text({}))}]
    found = []
    for name, each in named.items():
        tag = _parameter(literal(name), _value(schema, resolved(schema, each)))
        found.append(tag if name in required else {"type": "optional", "content": tag})
    return found


def _parameter(name: Tag, value: Tag) -> Tag:
    return sequence(
        literal(PARAMETER), name, literal(">\n"), value, literal(f"\n{PARAMETER_END}\n")
    )


def _value(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Tag:
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices:
        return any_of([literal(written(choice)) for choice in choices])
    form = ValueForm.of(root, schema)
    if form.is_text or "string" in form.kinds:
        return _text(schema)
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return json_value({**definitions, **schema})


def _text(schema: Mapping[str, Any]) -> Tag:
    """Return a string, whose format is not enforced."""
    if pattern := schema.get("pattern"):
        return {"type": "regex", "pattern": pattern}
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least:
        # Less than the schema allows: the value's end must not stand in it
        return {"type": "regex", "pattern": f"[^<]{{{least},{'' if most is None else most}}}"}
    bound = {} if most is None else {"max_chars": most}
    return {"type": "any_text", "excludes": list(VALUE_ENDS), **bound}
