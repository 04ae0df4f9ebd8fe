"""The form that a body asks its answer to have, in any of the fields that say it."""

from __future__ import annotations

import json
from typing import Any

from kvasir_engine.server.openai.api_error import invalid
from kvasir_engine.server.openai.schema import ChatBody, SamplingBody
from kvasir_engine.server.openai.tools.tool_request import field_of_calls

_OPTIONS = frozenset(
    {"disable_fallback", "disable_any_whitespace", "disable_additional_properties"}
)
"""Options of vLLM's `structured_outputs` that change nothing here."""


def structured_outputs(body: SamplingBody) -> str | None:
    """Return SamplingParams.structured_outputs; None if the body asks for no form."""
    found = _asked(body)
    if len(found) > 1:
        first, second = list(found)[:2]
        raise invalid(f"{first} and {second} exclude each other; give one of them.", second)
    return next((json.dumps(each, ensure_ascii=False) for each in found.values()), None)


def field_that_asks(body: SamplingBody) -> str:
    """Return the field by which a body asks for a form of its answer, or of the calls in it."""
    by_calls = field_of_calls(body) if isinstance(body, ChatBody) else None
    return next(iter(_asked(body)), by_calls or "structured_outputs")


def _asked(body: SamplingBody) -> dict[str, dict[str, Any]]:
    """Return what is asked for, by field."""
    asked = {
        "response_format": _response_format(body.response_format),
        "structured_outputs": _structured_outputs(body.structured_outputs),
        "guided_json": _guided("json", body.guided_json),
        "guided_regex": _guided("regex", body.guided_regex),
        "guided_choice": _guided("choice", body.guided_choice),
        "guided_grammar": _guided("grammar", body.guided_grammar),
    }
    return {field: form for field, form in asked.items() if form is not None}


def _response_format(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    field = "response_format"
    kind = value.get("type") if isinstance(value, dict) else None
    match kind:
        case "text":
            return None
        case "json_object":
            return {"json_object": True}
        case "json_schema":
            described = value.get("json_schema")
            if not isinstance(described, dict) or not isinstance(described.get("schema"), dict):
                where = f"{field}.json_schema"
                raise invalid(f"{where} must be an object with a schema.", where)
            return {"json": described["schema"]}
        case "structural_tag":
            return {"structural_tag": value}
    kinds = "text, json_object, json_schema or structural_tag"
    raise invalid(f"{field} must be an object whose type is {kinds}.", f"{field}.type")


def _structured_outputs(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise invalid("structured_outputs must be an object.", "structured_outputs")
    return {name: each for name, each in value.items() if each is not None and name not in _OPTIONS}


def _guided(kind: str, value: Any) -> dict[str, Any] | None:
    return None if value is None else {kind: value}
