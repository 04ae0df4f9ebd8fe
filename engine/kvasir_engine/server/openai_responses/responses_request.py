"""Bodies of the Responses API as chats, prepared for the core."""

from __future__ import annotations

import re
from typing import Any

from kvasir.wire.chat_of_body import ChatOfBody
from kvasir.wire.input_error import InputError
from kvasir.wire.responses_chat.chat_fields import chat_of_response
from kvasir_engine.server.openai.api_error import ApiError, invalid
from kvasir_engine.server.openai.body_parser import parse_body
from kvasir_engine.server.openai.preparer import PreparedRequest, Preparer
from kvasir_engine.server.openai_responses.input_truncation import truncate_input
from kvasir_engine.server.openai_responses.repeated_fields import check_repeated, repeated_fields
from kvasir_engine.server.openai_responses.responses_body import ResponsesBody, ResponsesChatBody

MAX_TOP_LOGPROBS = 20
_LOGPROBS = "message.output_text.logprobs"
_SENT_AS = (
    (re.compile(r"(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"\bresponse_format\.json_schema\b"), "text.format"),
    (re.compile(r"\bresponse_format\b"), "text.format"),
    (re.compile(r"\breasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"\bmax_(completion_)?tokens\b"), "max_output_tokens"),
    (re.compile(r"\bmessages\b(?!\[)"), "input"),
    (re.compile(r"^prompt$"), "input"),
)
"""Names of a chat's fields, and those that they have here."""


async def prepare_response(preparer: Preparer, raw: bytes, request_id: str) -> PreparedRequest:
    """Prepare POST /v1/responses. Raises ApiError."""
    body = parse_body(raw, ResponsesBody)
    check_repeated(body)
    given = _chat(body)
    chat = _chat_body(body, given)
    try:
        if body.truncation == "auto":
            await truncate_input(preparer, chat)
        prepared = await preparer.chat_of(chat, request_id)
    except ApiError as error:
        raise error.renamed(_SENT_AS, given.origins) from error
    for run in prepared.runs:
        # All of a resumed answer's text is read again: its last event repeats the whole of it.
        run.sent_chars = 0
    return prepared


def _chat(body: ResponsesBody) -> ChatOfBody:
    try:
        return chat_of_response(
            {
                "instructions": body.instructions,
                "input": body.input,
                "tools": body.tools,
                "tool_choice": body.tool_choice,
                "reasoning": body.reasoning,
                "cache_salt": body.cache_salt,
            }
        )
    except InputError as error:
        raise invalid(str(error), error.param, error.code) from error


def _chat_body(body: ResponsesBody, given: ChatOfBody) -> ResponsesChatBody:
    chat = ResponsesChatBody(
        **given.fields,
        model=body.model,
        temperature=body.temperature,
        top_p=body.top_p,
        stream=body.stream,
        priority=body.priority,
        resume=body.resume,
        repeated=repeated_fields(body),
    )
    chat.parallel_tool_calls = body.parallel_tool_calls
    chat.max_completion_tokens = body.max_output_tokens
    chat.response_format = _format(body.text or {})
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_TOP_LOGPROBS:
        raise invalid(
            f"top_logprobs must be 0 to {MAX_TOP_LOGPROBS}, not {body.top_logprobs}.",
            "top_logprobs",
        )
    if body.top_logprobs or _LOGPROBS in (body.include or ()):
        chat.logprobs, chat.top_logprobs = True, body.top_logprobs or 0
    return chat


def _format(text: dict[str, Any]) -> Any:
    """Return a chat's `response_format` for `text`."""
    if text.get("verbosity") not in (None, "medium"):
        raise invalid(
            "text.verbosity is not supported by this server; leave it out.",
            "text.verbosity",
            "unsupported",
        )
    given = text.get("format")
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise invalid(
            'text.format.type must be "text", "json_object" or "json_schema".', "text.format.type"
        )
    if kind == "json_schema":
        return {"type": kind, "json_schema": given}
    return {"type": kind}
