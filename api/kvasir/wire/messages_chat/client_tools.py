"""Tools of the Messages API in the form of a chat's, and the choice between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvasir.wire.input_error import InputError, shown, unsupported

_OF_TOOLS = ("name", "description", "parameters", "strict")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(tools: Any) -> list[dict[str, Any]]:
    """Return a chat's tools. Raises InputError for those that a server would have to run."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise InputError(f"tools must be a list, not {shown(tools)}.", "tools")
    return [_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]


def _tool(tool: Any, param: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise InputError(
            f"{param} must be an object with a name and an input_schema, not {shown(tool)}.", param
        )
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise unsupported(
            f"{param} is of type {shown(kind)}; only tools of the client's own, with a name "
            "and an input_schema, are supported.",
            param,
        )
    schema = tool.get("input_schema")
    if not isinstance(schema, Mapping):
        raise InputError(
            f"{param}.input_schema must be a JSON schema, an object, not {shown(schema)}.",
            f"{param}.input_schema",
        )
    given = {**tool, "parameters": schema}
    # In OpenAI's order, in which models have seen them: templates write fields as they come
    function = {name: given[name] for name in _OF_TOOLS if given.get(name) is not None}
    return {"type": "function", "function": {"name": tool.get("name"), **function}}


def chat_choice(choice: Any) -> Any:
    """Return a chat's `tool_choice`. Raises InputError."""
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "tool":
        name = choice.get("name")
        if not isinstance(name, str):
            raise InputError(
                f"tool_choice.name must be a string, not {shown(name)}.", "tool_choice.name"
            )
        return {"type": "function", "function": {"name": name}}
    if isinstance(kind, str) and kind in _CHOICES:
        return _CHOICES[kind]
    raise InputError(
        f'tool_choice.type must be "auto", "any", "tool" or "none", not {shown(kind)}.',
        "tool_choice.type",
    )
