"""Request bodies of the Responses API."""

from __future__ import annotations

from typing import Any

import msgspec

from kvasir_engine.server.openai.schema import ChatBody, ResumeBody


class ResponsesBody(msgspec.Struct, kw_only=True):
    """POST /v1/responses. `cache_salt` and `priority` are vLLM's additions, as a chat has them.

    `kept_by_router` is a router's word that it has put the earlier items into `input`, and that it
    keeps the response if `store` asks.
    """

    model: str | None = None
    input: Any = None
    instructions: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    truncation: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    prompt: Any = None
    cache_salt: str | None = None
    priority: int | None = None
    kept_by_router: bool | None = None
    resume: ResumeBody | None = None


class ResponsesChatBody(ChatBody, kw_only=True):
    """The chat that a body stands for, with what its answer repeats of the request."""

    repeated: dict[str, Any] = msgspec.field(default_factory=dict)
