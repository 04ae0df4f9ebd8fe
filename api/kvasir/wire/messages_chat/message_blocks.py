"""Anthropic's system and messages as messages of a chat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvasir.wire.input_error import InputError, shown, string_of, unsupported

_TYPES = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "tool_result": ("text",),
}
"""Types of the blocks that a content may have, by what it is the content of."""


def chat_messages(system: Any, messages: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a chat's messages, and the place in the body that each was made of. Raises InputError
    with the path of what cannot be shown.

    A tool_result becomes a message of the role tool; thinking becomes `reasoning_content`.
    """
    if not isinstance(messages, list):
        raise InputError(f"messages must be a list, not {shown(messages)}.", "messages")
    if not messages:
        raise InputError("messages must not be empty.", "messages")
    made: list[dict[str, Any]] = []
    origins: list[str] = []
    if system is not None:
        text = "\n".join(_texts(system, "system", "system"))
        if text:
            made.append({"role": "system", "content": text})
            origins.append("system")
    calls: dict[str, str] = {}
    for at, message in enumerate(messages):
        param = f"messages[{at}]"
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ("user", "assistant"):
            raise InputError(
                f'{param}.role must be "user" or "assistant", not {shown(role)}; a system prompt '
                "goes into system.",
                f"{param}.role",
            )
        content = _blocks(message.get("content"), f"{param}.content", role)
        if role == "user":
            made += _user_messages(content, calls)
        else:
            made.append(_assistant_message(content, calls))
        origins += [param] * (len(made) - len(origins))
    _check_last(made, f"messages[{len(messages) - 1}]")
    return made, origins


def _check_last(made: list[dict[str, Any]], param: str) -> None:
    if made[-1].get("tool_calls"):
        raise InputError(
            f"{param} ends with a tool_use; add a user message with its tool_result.", param
        )


def _blocks(content: Any, param: str, owner: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the blocks of a content with their paths; a string is one block."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif not isinstance(content, list):
        raise InputError(
            f"{param} must be a string or a list of blocks, not {shown(content)}.", param
        )
    if not content:
        raise InputError(f"{param} must not be empty.", param)
    made = []
    for at, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind not in _TYPES[owner]:
            raise unsupported(
                f"{param}[{at}] is a block of type {shown(kind)}; only {_listed(_TYPES[owner])} "
                "is supported here.",
                f"{param}[{at}]",
            )
        made.append((f"{param}[{at}]", block))
    return made


def _texts(content: Any, param: str, owner: str) -> list[str]:
    return [string_of(block, "text", at) for at, block in _blocks(content, param, owner)]


def _user_messages(
    content: list[tuple[str, Mapping[str, Any]]], calls: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield what a user's message is in a chat: the texts between results joined."""
    texts: list[str] = []
    for param, block in content:
        if block["type"] == "text":
            texts.append(string_of(block, "text", param))
            continue
        if texts:
            yield {"role": "user", "content": "\n".join(texts)}
            texts = []
        yield _result(block, param, calls)
    if texts:
        yield {"role": "user", "content": "\n".join(texts)}


def _result(block: Mapping[str, Any], param: str, calls: Mapping[str, str]) -> dict[str, Any]:
    call = string_of(block, "tool_use_id", param)
    if call not in calls:
        raise InputError(
            f"{param}.tool_use_id {shown(call)} is the id of no tool_use before it.",
            f"{param}.tool_use_id",
        )
    given = block.get("content")
    text = "\n".join(_texts(given, f"{param}.content", "tool_result")) if given else ""
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": call, "name": calls[call], "content": text}


def _assistant_message(
    content: list[tuple[str, Mapping[str, Any]]], calls: dict[str, str]
) -> dict[str, Any]:
    """Return an assistant's message, and note its calls by id."""
    texts, thoughts, tool_calls = [], [], []
    for param, block in content:
        if block["type"] == "text":
            texts.append(string_of(block, "text", param))
        elif block["type"] == "thinking":
            thoughts.append(string_of(block, "thinking", param))
        else:
            call, name = string_of(block, "id", param), string_of(block, "name", param)
            given = block.get("input")
            if not isinstance(given, Mapping):
                raise InputError(
                    f"{param}.input must be an object, not {shown(given)}.", f"{param}.input"
                )
            calls[call] = name
            function = {"name": name, "arguments": given}
            tool_calls.append({"id": call, "type": "function", "function": function})
    made: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        made["reasoning_content"] = "\n".join(thoughts)
    if tool_calls:
        made["tool_calls"] = tool_calls
    return made


def _listed(types: tuple[str, ...]) -> str:
    return types[0] if len(types) == 1 else f"{', '.join(types[:-1])} or {types[-1]}"
