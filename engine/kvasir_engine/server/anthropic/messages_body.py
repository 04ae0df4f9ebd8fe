"""Request bodies of Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

import msgspec

from kvasir_engine.server.openai.schema import ResumeBody


class CountTokensBody(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens."""

    model: str | None = None
    messages: list[Any]
    system: Any = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    thinking: Any = None
    output_config: dict[str, Any] | None = None
    thread: Any = None


class MessagesBody(CountTokensBody, kw_only=True):
    """POST /v1/messages. `cache_salt` and `priority` are vLLM's additions, as a chat has them."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    resume: ResumeBody | None = None
