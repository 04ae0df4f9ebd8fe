"""Tools of a chat body: checked, and as the chat template takes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvasir.text.chat_template import ChatTemplate
from kvasir_engine.grammar.schema_keywords import SchemaError
from kvasir_engine.server.openai.api_error import invalid
from kvasir_engine.server.openai.schema import ChatBody, TokenizeBody
from kvasir_engine.text.parsing.call_grammar import strict_schema
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.schema_values import referenced

MAX_TOOLS = 1024
MAX_SCHEMA_DEPTH = 128
_MAX_SHOWN = 64
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FUNCTION_FIELDS = ("name", "description", "parameters")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


def check_tools(body: ChatBody, template: ChatTemplate | None, parsing: Parsing | None) -> None:
    """Raise a 400 for tools, and for what belongs to them, that cannot be served."""
    _check_effort(body.reasoning_effort, parsing)
    names = check_tool_list(body, template)
    _check_choice(body.tool_choice, names)
    if names and body.tool_choice != "none" and (parsing is None or parsing.tools is None):
        raise invalid(
            "This server does not know how this model writes tool calls; leave tools out, or start "
            "the server with --tool-call-parser NAME.",
            "tools",
            "unsupported",
        )


def _check_effort(effort: Any, parsing: Parsing | None) -> None:
    of_model = None if parsing is None or parsing.reasoning is None else parsing.reasoning.efforts
    known = of_model or _EFFORTS
    if effort is not None and effort not in known:
        which = "for this model " if of_model else ""
        raise invalid(
            f"reasoning_effort must {which}be one of {', '.join(known)}, not {_shown(effort)}.",
            "reasoning_effort",
        )


def wants_calls(body: ChatBody) -> bool:
    """Return whether the answer may call tools."""
    return bool(body.tools) and body.tool_choice != "none"


def has_to_call(body: ChatBody) -> bool:
    """Return whether the answer must be calls."""
    return bool(body.tools) and body.tool_choice not in (None, "auto", "none")


def is_strict(tool: Mapping[str, Any]) -> bool:
    """Return whether a tool's arguments must keep to its schema."""
    return bool(tool["function"].get("strict"))


def field_of_calls(body: ChatBody) -> str | None:
    """Return the field by which a body asks for calls of a form; None if it asks for none."""
    if has_to_call(body):
        return "tool_choice"
    strict = (at for at, tool in enumerate(body.tools or ()) if is_strict(tool))
    at = next(strict, None) if wants_calls(body) else None
    return None if at is None else f"tools[{at}].function.strict"


def check_tool_list(body: ChatBody | TokenizeBody, template: ChatTemplate | None) -> dict[str, int]:
    """Return the tools' names and places. Raises a 400."""
    names: dict[str, int] = {}
    tools = body.tools or []
    if len(tools) > MAX_TOOLS:
        raise invalid(
            f"tools takes at most {MAX_TOOLS} tools, got {len(tools)}; leave some out.", "tools"
        )
    for at, tool in enumerate(tools):
        name = _checked_name(tool, f"tools[{at}]")
        if name in names:
            raise invalid(
                f"tools[{at}].function.name {name!r} stands twice (tools[{names[name]}] has it "
                "too); names must differ.",
                f"tools[{at}].function.name",
            )
        names[name] = at
    _check_template(body, template, bool(names))
    return names


def _check_template(
    body: ChatBody | TokenizeBody, template: ChatTemplate | None, tools: bool
) -> None:
    if template is None:
        return
    if tools and not template.shows_tools:
        raise invalid(
            "This model's chat template does not show tools; leave tools out, or start the server "
            "with --chat-template FILE of one that does.",
            "tools",
            "unsupported",
        )
    if template.knows_tool_messages:
        return
    for at, message in enumerate(body.messages or ()):
        if isinstance(message, Mapping) and (
            message.get("role") == "tool" or message.get("tool_calls")
        ):
            raise invalid(
                f"messages[{at}] is about a tool call, which this model's chat template leaves "
                "out; start the server with --chat-template FILE of one that shows it.",
                f"messages[{at}]",
                "unsupported",
            )


def _checked_name(tool: Any, param: str) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
        raise invalid(
            f'{param} must be {{"type": "function", "function": {{...}}}}; other kinds of tools '
            "are not supported.",
            param,
        )
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(
            f"{param}.function.name must be 1 to 64 letters, digits, dots, underscores and dashes, "
            f"not {_shown(name)}.",
            f"{param}.function.name",
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise invalid(
            f"{param}.function.description must be a string.", f"{param}.function.description"
        )
    _check_schema(function.get("parameters"), f"{param}.function.parameters")
    if function.get("strict"):
        _check_strict(function.get("parameters") or {}, f"{param}.function.parameters")
    return name


def _check_strict(schema: Mapping[str, Any], param: str) -> None:
    try:
        strict_schema(schema)
    except SchemaError as error:
        raise invalid(
            f"{param} of a strict function cannot be enforced: {error}; change it, or leave strict "
            "out.",
            param,
            "unsupported",
        ) from error


def _check_schema(schema: Any, param: str) -> None:
    if schema is None:
        return
    if not isinstance(schema, Mapping):
        raise invalid(f"{param} must be a JSON schema, an object.", param)
    for each in _parts(schema, param):
        reference = each.get("$ref")
        if isinstance(reference, str):
            _check_reference(schema, reference, param)


def _parts(schema: Mapping[str, Any], param: str) -> Iterator[Mapping[str, Any]]:
    """Yield every object within a schema. Raises a 400 for one that is nested too deeply."""
    left: list[tuple[Any, int]] = [(schema, 1)]
    while left:
        part, depth = left.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise invalid(f"{param} is nested more than {MAX_SCHEMA_DEPTH} levels.", param)
        if isinstance(part, Mapping):
            yield part
            left += [(each, depth + 1) for each in part.values()]
        elif isinstance(part, list):
            left += [(each, depth + 1) for each in part]


def _check_reference(schema: Mapping[str, Any], reference: str, param: str) -> None:
    """Refuse a reference that leads to itself and nowhere else; a tree's node may name itself."""
    seen = [reference]
    while (target := referenced(schema, seen[-1])) is not None:
        following = target.get("$ref")
        if not isinstance(following, str):
            return
        if following in seen:
            raise invalid(
                f"{param}: $ref {_shown(reference)} leads back to itself without a schema; give "
                "it one.",
                param,
            )
        seen.append(following)


def _check_choice(choice: Any, names: Mapping[str, int]) -> None:
    if choice in (None, "none"):
        return
    function = choice.get("function") if isinstance(choice, Mapping) else None
    named = function.get("name") if isinstance(function, Mapping) else None
    if isinstance(named, str) and named not in names:
        raise invalid(f"tool_choice names {_shown(named)}, which is not in tools.", "tool_choice")
    if not names:
        raise invalid(
            f"tool_choice {_shown(choice)} needs tools; give some, or leave tool_choice out.",
            "tool_choice",
        )
    if choice not in ("auto", "required") and not isinstance(named, str):
        raise invalid(
            'tool_choice must be "auto", "none", "required" or {"type": "function", "function": '
            f'{{"name": ...}}}}, not {_shown(choice)}.',
            "tool_choice",
        )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def template_tools(body: ChatBody | TokenizeBody) -> list[dict[str, Any]] | None:
    """Return the tools as the template takes them: as they were sent, without what only an API
    reads, and a function's fields in OpenAI's order: templates write them as they come."""
    if not body.tools:
        return None
    return [{"type": "function", **tool, "function": _shown_function(tool)} for tool in body.tools]


def _shown_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {k: v for k, v in tool["function"].items() if k != "strict"}
    first = {name: function[name] for name in _FUNCTION_FIELDS if name in function}
    return {**first, **function}


def template_arguments(body: ChatBody | TokenizeBody) -> dict[str, Any]:
    """Return the template's other arguments; those of chat_template_kwargs come first.

    Templates of Qwen ask for `enable_thinking`, those of Granite and DeepSeek for `thinking`. An
    effort sets both where neither is given: some templates think only where they are told to.
    """
    given = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        given.setdefault("reasoning_effort", body.reasoning_effort)
    effort = given.get("reasoning_effort")
    if effort is not None and "thinking" not in given:
        given.setdefault("enable_thinking", effort != "none")
    for name, other in (("thinking", "enable_thinking"), ("enable_thinking", "thinking")):
        if other in given:
            given.setdefault(name, given[other])
    return given
