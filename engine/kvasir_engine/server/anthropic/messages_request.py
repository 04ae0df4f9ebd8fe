"""Bodies of the Messages API as chats, prepared for the core."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from kvasir_engine.server.anthropic.conversation import chat_messages
from kvasir_engine.server.anthropic.messages_body import CountTokensBody, MessagesBody
from kvasir_engine.server.openai.api_error import ApiError, invalid
from kvasir_engine.server.openai.body_parser import parse_body
from kvasir_engine.server.openai.preparer import PreparedRequest, Preparer
from kvasir_engine.server.openai.schema import ChatBody

_OF_TOOLS = ("name", "description", "parameters", "strict")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_SENT_AS = (
    (re.compile(r"\.function\.parameters\b"), ".input_schema"),
    (re.compile(r"(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"^stop\b"), "stop_sequences"),
    (re.compile(r"^thinking_token_budget\b"), "thinking.budget_tokens"),
    (re.compile(r"^response_format(\.json_schema)?\b"), "output_config.format"),
    (re.compile(r"^reasoning_effort\b"), "output_config.effort"),
)
"""Names of a chat's fields, and those that they have here."""


async def prepare_messages(preparer: Preparer, raw: bytes, request_id: str) -> PreparedRequest:
    """Prepare POST /v1/messages. Raises ApiError."""
    body = parse_body(raw, MessagesBody)
    chat = _chat_body(body)
    chat.max_tokens = body.max_tokens
    chat.stop = body.stop_sequences
    chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
    chat.stream, chat.cache_salt, chat.priority = body.stream, body.cache_salt, body.priority
    try:
        return await preparer.chat_of(chat, request_id)
    except ApiError as error:
        raise error.renamed(_SENT_AS) from error


async def count_tokens(preparer: Preparer, raw: bytes) -> bytes:
    """Return the answer to POST /v1/messages/count_tokens. Raises ApiError."""
    chat = _chat_body(parse_body(raw, CountTokensBody))
    try:
        prompt = await preparer.chat_prompt(chat)
    except ApiError as error:
        raise error.renamed(_SENT_AS) from error
    return msgspec.json.encode({"input_tokens": len(prompt.token_ids)})


def _chat_body(body: CountTokensBody) -> ChatBody:
    """Return the chat that has the same prompt."""
    if body.thread is not None:
        raise _no_threads()
    chat = ChatBody(model=body.model, messages=chat_messages(body.system, body.messages))
    chat.continue_final_message = chat.messages[-1]["role"] == "assistant" or None
    if body.tools:
        chat.tools = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(body.tools)]
    if body.tool_choice is not None:
        _choose(chat, body.tool_choice)
    if body.thinking is not None:
        thinks = _thinks(body.thinking)
        chat.chat_template_kwargs = {"enable_thinking": thinks}
        chat.include_reasoning = thinks
        chat.thinking_token_budget = _budget(body.thinking)
    _configure(chat, body.output_config or {})
    return chat


def _no_threads() -> ApiError:
    """Return an error behind which Anthropic's tool runners go on without a thread."""
    return ApiError(
        400,
        "thread is not supported by this server; leave it out, and send the whole conversation in "
        "messages.",
        param="thread",
        extra={"details": {"error_code": "thread_unsupported_request"}},
    )


def _configure(chat: ChatBody, config: Mapping[str, Any]) -> None:
    for name, value in config.items():
        if name not in ("format", "effort") and value is not None:
            field = f"output_config.{name[:64]}"
            raise invalid(
                f"{field} is not supported by this server; leave it out.", field, "unsupported"
            )
    form, effort = config.get("format"), config.get("effort")
    if form is not None:
        if not isinstance(form, Mapping) or form.get("type") != "json_schema":
            raise invalid(
                'output_config.format.type must be "json_schema".', "output_config.format.type"
            )
        chat.response_format = {"type": "json_schema", "json_schema": form}
    chat.reasoning_effort = "xhigh" if effort == "max" else effort


def _tool(tool: Any, param: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise invalid(f"{param} must be an object with a name and an input_schema.", param)
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise invalid(
            f"{param} is of type {str(kind)[:64]!r}; only tools of the client's own, with a name "
            "and an input_schema, are supported.",
            param,
            "unsupported",
        )
    if not isinstance(tool.get("input_schema"), Mapping):
        raise invalid(
            f"{param}.input_schema must be a JSON schema, an object.", f"{param}.input_schema"
        )
    given = {**tool, "parameters": tool["input_schema"]}
    # In OpenAI's order, in which models have seen them: templates write fields as they come.
    function = {name: given[name] for name in _OF_TOOLS if given.get(name) is not None}
    return {"type": "function", "function": {"name": tool.get("name"), **function}}


def _choose(chat: ChatBody, choice: Any) -> None:
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "tool":
        name = choice.get("name")
        if not isinstance(name, str):
            raise invalid("tool_choice.name must be a string.", "tool_choice.name")
        chat.tool_choice = {"type": "function", "function": {"name": name}}
    elif isinstance(kind, str) and kind in _CHOICES:
        chat.tool_choice = _CHOICES[kind]
    else:
        raise invalid(
            'tool_choice.type must be "auto", "any", "tool" or "none".', "tool_choice.type"
        )
    if choice.get("disable_parallel_tool_use"):
        chat.parallel_tool_calls = False


def _thinks(thinking: Any) -> bool:
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    if kind not in ("enabled", "adaptive", "disabled"):
        raise invalid('thinking.type must be "enabled", "adaptive" or "disabled".', "thinking.type")
    return bool(kind != "disabled")


def _budget(thinking: Mapping[str, Any]) -> int | None:
    """Return the tokens that reasoning may have, where the type asks for a limit."""
    if thinking["type"] != "enabled":
        return None
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or isinstance(budget, bool):
        shown = "missing" if budget is None else repr(budget)[:64]
        raise invalid(
            f'thinking.budget_tokens must be a whole number, with type "enabled"; it is {shown}.',
            "thinking.budget_tokens",
        )
    return budget
