"""Bodies of the Messages API as chats, prepared for the core."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from kvasir.wire.chat_of_body import ChatOfBody
from kvasir.wire.input_error import InputError, shown
from kvasir.wire.messages_chat.messages_fields import chat_of_messages
from kvasir_engine.server.anthropic.messages_body import CountTokensBody, MessagesBody
from kvasir_engine.server.openai.api_error import ApiError, invalid
from kvasir_engine.server.openai.body_parser import parse_body
from kvasir_engine.server.openai.preparer import PreparedRequest, Preparer
from kvasir_engine.server.openai.schema import ChatBody

_SENT_AS = (
    (re.compile(r"\.function\.parameters\b"), ".input_schema"),
    (re.compile(r"(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"\btool_choice 'required'"), "tool_choice 'any'"),
    (re.compile(r"^stop\b"), "stop_sequences"),
    (re.compile(r"^thinking_token_budget\b"), "thinking.budget_tokens"),
    (re.compile(r"^response_format(\.json_schema)?\b"), "output_config.format"),
    (re.compile(r"^reasoning_effort\b"), "output_config.effort"),
)
"""Names of a chat's fields, and those that they have here."""


async def prepare_messages(preparer: Preparer, raw: bytes, request_id: str) -> PreparedRequest:
    """Prepare POST /v1/messages. Raises ApiError."""
    body = parse_body(raw, MessagesBody)
    given = _chat(body, cache_salt=body.cache_salt)
    chat = ChatBody(**given.fields, model=body.model)
    chat.max_tokens = body.max_tokens
    chat.stop = body.stop_sequences
    chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
    chat.stream, chat.priority, chat.resume = body.stream, body.priority, body.resume
    if isinstance(body.tool_choice, Mapping) and body.tool_choice.get("disable_parallel_tool_use"):
        chat.parallel_tool_calls = False
    if isinstance(body.thinking, Mapping):
        chat.include_reasoning = body.thinking["type"] != "disabled"
        chat.thinking_token_budget = _budget(body.thinking)
    chat.response_format = _form(body.output_config or {})
    try:
        prepared = await preparer.chat_of(chat, request_id)
    except ApiError as error:
        raise error.renamed(_SENT_AS, given.origins) from error
    for run in prepared.runs:
        # All of a resumed answer's events are made again: the writer leaves out what was sent.
        run.sent_chars = 0
    return prepared


async def count_tokens(preparer: Preparer, raw: bytes) -> bytes:
    """Return the answer to POST /v1/messages/count_tokens. Raises ApiError."""
    body = parse_body(raw, CountTokensBody)
    given = _chat(body)
    _form(body.output_config or {})
    try:
        prompt = await preparer.chat_prompt(ChatBody(**given.fields, model=body.model))
    except ApiError as error:
        raise error.renamed(_SENT_AS, given.origins) from error
    return msgspec.json.encode({"input_tokens": len(prompt.token_ids)})


def _chat(body: CountTokensBody, cache_salt: str | None = None) -> ChatOfBody:
    """Return the chat that has the same prompt."""
    if body.thread is not None:
        raise _no_threads()
    given = {
        "system": body.system,
        "messages": body.messages,
        "tools": body.tools,
        "tool_choice": body.tool_choice,
        "thinking": body.thinking,
        "output_config": body.output_config,
        "cache_salt": cache_salt,
    }
    try:
        return chat_of_messages(given)
    except InputError as error:
        raise invalid(str(error), error.param, error.code) from error


def _no_threads() -> ApiError:
    """Return an error behind which Anthropic's tool runners go on without a thread."""
    return ApiError(
        400,
        "thread is not supported by this server; leave it out, and send the whole conversation in "
        "messages.",
        param="thread",
        extra={"details": {"error_code": "thread_unsupported_request"}},
    )


def _form(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a chat's `response_format` for `output_config`, whose effort is the prompt's."""
    for name, value in config.items():
        if name not in ("format", "effort") and value is not None:
            field = f"output_config.{name[:64]}"
            raise invalid(
                f"{field} is not supported by this server; leave it out.", field, "unsupported"
            )
    form = config.get("format")
    if form is None:
        return None
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        raise invalid(
            'output_config.format.type must be "json_schema".', "output_config.format.type"
        )
    return {"type": "json_schema", "json_schema": form}


def _budget(thinking: Mapping[str, Any]) -> int | None:
    """Return the tokens that reasoning may have, where the type asks for a limit."""
    if thinking["type"] != "enabled":
        return None
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or isinstance(budget, bool):
        found = "missing" if budget is None else shown(budget)
        raise invalid(
            f'thinking.budget_tokens must be a whole number, with type "enabled"; it is {found}.',
            "thinking.budget_tokens",
        )
    return budget
