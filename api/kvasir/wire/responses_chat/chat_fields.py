"""The fields of the chat that a body of the Responses API stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvasir.wire.chat_of_body import ChatOfBody
from kvasir.wire.input_error import InputError, shown
from kvasir.wire.responses_chat.function_tools import chat_choice, chat_tools
from kvasir.wire.responses_chat.input_items import Conversation


def chat_of_response(body: Mapping[str, Any]) -> ChatOfBody:
    """Return the chat of a parsed body. Raises InputError with the path of what is wrong."""
    talk = Conversation()
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise InputError("instructions must be a string.", "instructions")
    if instructions:
        talk.add({"role": "system", "content": instructions}, "instructions")
    _add_input(talk, body.get("input"))
    fields: dict[str, Any] = {"messages": talk.messages, **_reasoning(body.get("reasoning"))}
    tools, choice = chat_choice(body.get("tool_choice"), chat_tools(body.get("tools")))
    if tools:
        fields["tools"] = tools
    if choice is not None:
        fields["tool_choice"] = choice
    if body.get("cache_salt") is not None:
        fields["cache_salt"] = body["cache_salt"]
    return ChatOfBody(fields, talk.origins)


def _add_input(talk: Conversation, given: Any) -> None:
    if isinstance(given, str):
        talk.add({"role": "user", "content": given}, "input")
        return
    if given is None:
        raise InputError("input is required: a string, or a list of items.", "input")
    if not isinstance(given, list):
        raise InputError(f"input must be a string or a list of items, not {shown(given)}.", "input")
    if not given:
        raise InputError("input must not be empty.", "input")
    for at, item in enumerate(given):
        talk.add(item, f"input[{at}]")
    talk.end(f"input[{len(given) - 1}]")


def _reasoning(given: Any) -> dict[str, Any]:
    """Return a chat's fields for `reasoning`: its effort, and no thinking at all for none."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError('reasoning must be an object, such as {"effort": "low"}.', "reasoning")
    effort = given.get("effort")
    if effort is None:
        return {}
    if not isinstance(effort, str):
        raise InputError("reasoning.effort must be a string.", "reasoning.effort")
    fields: dict[str, Any] = {"reasoning_effort": effort}
    if effort == "none":
        fields["chat_template_kwargs"] = {"enable_thinking": False}
    return fields
