"""Tools of the Responses API in the form of a chat's, and the choice between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvasir.wire.input_error import InputError, shown, unsupported

_OPTIONS = ("auto", "none", "required")
_FIELDS = ("name", "description", "parameters", "strict")


def chat_tools(tools: Any) -> list[dict[str, Any]]:
    """Return a chat's tools. Raises InputError for those that a server would have to run."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise InputError("tools must be a list.", "tools")
    return [_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]


def _tool(tool: Any, param: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or kind is None:
        raise InputError(f'{param} must be an object of type "function" with a name.', param)
    if kind != "function":
        raise unsupported(
            f"{param} is of type {shown(kind)}, which this server does not run; only functions of "
            'the client\'s own, of type "function", are supported.',
            param,
        )
    given = {field: tool[field] for field in _FIELDS if tool.get(field) is not None}
    return {"type": "function", "function": given}


def chat_choice(choice: Any, tools: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Any]:
    """Return the tools that may be called and a chat's `tool_choice`. Raises InputError."""
    if choice is None or choice in _OPTIONS:
        return tools, choice
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "function":
        return tools, {"type": "function", "function": {"name": choice.get("name")}}
    if kind == "allowed_tools":
        return _allowed(choice, tools)
    if isinstance(kind, str):
        raise unsupported(
            f"tool_choice is of type {shown(kind)}, a tool that this server does not run; use "
            '"auto", "none", "required" or a function.',
            "tool_choice",
        )
    raise InputError(
        'tool_choice must be "auto", "none", "required", {"type": "function", "name": ...} or '
        f"allowed_tools, not {shown(choice)}.",
        "tool_choice",
    )


def _allowed(
    choice: Mapping[str, Any], tools: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], str]:
    mode, allowed = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise InputError(
            f'tool_choice.mode must be "auto" or "required", not {shown(mode)}.', "tool_choice.mode"
        )
    if not isinstance(allowed, list) or not allowed:
        raise InputError(
            "tool_choice.tools must be a list of functions, not empty.", "tool_choice.tools"
        )
    names = []
    known = {each["function"].get("name") for each in tools}
    for at, each in enumerate(allowed):
        name = each.get("name") if isinstance(each, Mapping) else None
        if not isinstance(name, str) or name not in known:
            raise InputError(
                f"tool_choice.tools[{at}] must name a function of tools, not {shown(name)}.",
                f"tool_choice.tools[{at}]",
            )
        names.append(name)
    return [each for each in tools if each["function"].get("name") in names], mode
