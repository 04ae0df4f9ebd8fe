"""Instructions and input items of the Responses API as messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvasir.wire.input_error import InputError, shown, string_of, unsupported

_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
"""Roles of messages, and those of the chat templates, few of which know a developer."""
_TEXTS = ("input_text", "output_text", "text")
_FIELDS = {**dict.fromkeys(_TEXTS, "text"), "refusal": "refusal"}
"""Types of the parts that a content may have, and the fields of their texts."""


class Conversation:
    """Messages of a chat, made of items one after another.

    An assistant's reasoning, text and calls are items of their own and one message.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.origins: list[str] = []
        """Place in the body of what each message was made of."""
        self._calls: dict[str, str] = {}
        """Names of the functions called, by id of the call."""
        self._thoughts: list[str] = []
        self._thought_at = ""

    def add(self, item: Any, param: str) -> None:
        """Add an item. Raises InputError."""
        if not isinstance(item, Mapping):
            raise InputError(f"{param} must be an object, not {shown(item)}.", param)
        match item.get("type", "message"):
            case "message":
                self._message(item, param)
            case "function_call":
                self._call(item, param)
            case "function_call_output":
                self._output(item, param)
            case "reasoning":
                self._reasoning(item, param)
            case other:
                raise unsupported(
                    f"{param} is an item of type {shown(other)}; only message, function_call, "
                    "function_call_output and reasoning are supported here.",
                    param,
                )

    def end(self, param: str) -> None:
        """Check the end. Raises InputError for one that no answer can follow; `param` is the place
        of the last item."""
        self._end_thoughts()
        if self.messages and self.messages[-1].get("tool_calls"):
            raise InputError(
                f"{param} is a function_call without an answer; add its function_call_output.",
                param,
            )

    def _message(self, item: Mapping[str, Any], param: str) -> None:
        given = item.get("role")
        role = _ROLES.get(given) if isinstance(given, str) else None
        if role is None:
            raise InputError(
                f'{param}.role must be "user", "assistant", "system" or "developer", not '
                f"{shown(given)}.",
                f"{param}.role",
            )
        text = text_of(item.get("content"), f"{param}.content")
        if role != "assistant":
            self._append({"role": role, "content": text}, param)
            return
        message = self._assistant(param, joins=False)
        message["content"] = text

    def _call(self, item: Mapping[str, Any], param: str) -> None:
        call, name = string_of(item, "call_id", param), string_of(item, "name", param)
        arguments = string_of(item, "arguments", param)
        self._calls[call] = name
        function = {"name": name, "arguments": arguments}
        message = self._assistant(param, joins=True)
        made = {"id": call, "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(made)

    def _output(self, item: Mapping[str, Any], param: str) -> None:
        call = string_of(item, "call_id", param)
        if call not in self._calls:
            raise InputError(
                f"{param}.call_id {shown(call)} is the call_id of no function_call before it.",
                f"{param}.call_id",
            )
        text = text_of(item.get("output"), f"{param}.output")
        name = self._calls[call]
        self._append({"role": "tool", "tool_call_id": call, "name": name, "content": text}, param)

    def _reasoning(self, item: Mapping[str, Any], param: str) -> None:
        for field, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
            texts = _reasoning_texts(item.get(field), f"{param}.{field}", kind)
            if texts:
                self._thoughts += texts
                self._thought_at = param
                return
        if item.get("encrypted_content") is not None:
            raise unsupported(
                f"{param}.encrypted_content can be read by the server alone that wrote it; send "
                "the item with its content, or leave it out.",
                f"{param}.encrypted_content",
            )

    def _assistant(self, param: str, *, joins: bool) -> dict[str, Any]:
        """Return the assistant's message that goes on here; `joins` says that it may be the last
        one."""
        last = self.messages[-1] if self.messages else None
        if joins and last is not None and last["role"] == "assistant" and not self._thoughts:
            return last
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if self._thoughts:
            message["reasoning_content"] = "\n".join(self._thoughts)
            self._thoughts = []
        self.messages.append(message)
        self.origins.append(param)
        return message

    def _append(self, message: dict[str, Any], param: str) -> None:
        self._end_thoughts()
        self.messages.append(message)
        self.origins.append(param)

    def _end_thoughts(self) -> None:
        """Make a message of reasoning that no text and no call followed."""
        if self._thoughts:
            self._assistant(self._thought_at, joins=False)


def text_of(content: Any, param: str) -> str:
    """Return the text of a content: a string, or parts, which are joined by a newline. Raises
    InputError."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InputError(f"{param} must be a string or a list of parts.", param)
    return "\n".join(_part_text(part, f"{param}[{at}]") for at, part in enumerate(content))


def _part_text(part: Any, param: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    field = _FIELDS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise unsupported(
            f"{param} is a part of type {shown(kind)}; only text is supported here, as input_text "
            "or output_text.",
            param,
        )
    return string_of(part, field, param)


def _reasoning_texts(parts: Any, param: str, kind: str) -> list[str]:
    if parts is None:
        return []
    if not isinstance(parts, list):
        raise InputError(f"{param} must be a list of parts of type {kind}.", param)
    texts = []
    for at, part in enumerate(parts):
        if not isinstance(part, Mapping) or part.get("type") != kind:
            raise InputError(f"{param}[{at}] must be a part of type {kind}.", f"{param}[{at}]")
        texts.append(string_of(part, "text", f"{param}[{at}]"))
    return texts
