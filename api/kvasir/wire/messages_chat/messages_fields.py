"""The fields of the chat that a body of the Messages API stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvasir.wire.chat_of_body import ChatOfBody
from kvasir.wire.input_error import InputError, shown
from kvasir.wire.messages_chat.client_tools import chat_choice, chat_tools
from kvasir.wire.messages_chat.message_blocks import chat_messages

MESSAGES_FIELDS = (
    *("system", "messages", "tools", "tool_choice", "thinking", "output_config"),
    "cache_salt",
)
"""Fields of a body that decide its prompt's tokens or their KV."""


def chat_of_messages(body: Mapping[str, Any]) -> ChatOfBody:
    """Return the chat of a parsed body, of which only MESSAGES_FIELDS are read. Raises InputError
    with the path of what is wrong."""
    messages, origins = chat_messages(body.get("system"), body.get("messages"))
    fields: dict[str, Any] = {"messages": messages}
    if messages[-1]["role"] == "assistant":
        fields["continue_final_message"] = True
    tools = chat_tools(body.get("tools"))
    if tools:
        fields["tools"] = tools
    if body.get("tool_choice") is not None:
        fields["tool_choice"] = chat_choice(body["tool_choice"])
    if body.get("thinking") is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": thinks(body["thinking"])}
    effort = _effort(body.get("output_config"))
    if effort is not None:
        fields["reasoning_effort"] = effort
    if body.get("cache_salt") is not None:
        fields["cache_salt"] = body["cache_salt"]
    return ChatOfBody(fields, origins)


def thinks(thinking: Any) -> bool:
    """Return whether `thinking` asks for any. Raises InputError."""
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    if kind not in ("enabled", "adaptive", "disabled"):
        raise InputError(
            f'thinking.type must be "enabled", "adaptive" or "disabled", not {shown(kind)}.',
            "thinking.type",
        )
    return bool(kind != "disabled")


def _effort(config: Any) -> Any:
    """Return a chat's `reasoning_effort` for `output_config`; None where it has no effort."""
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise InputError(
            f"output_config must be an object or null, not {shown(config)}.", "output_config"
        )
    effort = config.get("effort")
    return "xhigh" if effort == "max" else effort
