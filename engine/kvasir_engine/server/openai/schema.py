"""Request bodies. Field names and meanings are OpenAI's, then vLLM's."""

from __future__ import annotations

from typing import Any

import msgspec


class StreamOptions(msgspec.Struct, kw_only=True):
    """Options of a stream's usage reports."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ResumeBody(msgspec.Struct, kw_only=True):
    """Output of an earlier, broken answer to the same body, to be resumed.

    `sample_index` is the choice's index in that answer; the new one holds this choice alone.
    `sent_chars` counts Unicode code points of its text that the client has: of content, reasoning
    and the arguments of tool calls, and one for each call; `opened` says that it has the choice's
    first event (the role, an echoed prompt), `finished` that it has the one with the finish reason.
    Of a response or a message, `sent_events` counts the events that the client has, and
    `sent_steps` those of them that add no text. router_contract.py explains the rest.
    """

    output_token_ids: list[int] = []
    seed: int | None = None
    sample_index: int = 0
    sent_chars: int = 0
    opened: bool = True
    finished: bool = False
    sent_events: int = 0
    sent_steps: int = 0
    cached_tokens: int | None = None
    id: str | None = None
    created: int | None = None


class SamplingBody(msgspec.Struct, kw_only=True):
    """Fields that completions and chat completions share. None = the default."""

    model: str | None = None
    n: int | None = None
    best_of: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: Any = None
    structured_outputs: Any = None
    thinking_token_budget: int | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    resume: ResumeBody | None = None


class CompletionBody(SamplingBody, kw_only=True):
    """POST /v1/completions. `prompt`: a string, strings, token ids, or lists of token ids."""

    prompt: Any = None
    echo: bool | None = None
    logprobs: int | None = None


class ChatBody(SamplingBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Any]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize: a prompt, or messages through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    reasoning_effort: str | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]


IGNORED_FIELDS = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields of OpenAI that change nothing about an answer of a server like this one."""

UNSUPPORTED_FIELDS: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "chat_template": (),
    "container": (),
    "context_management": (),
    "conversation": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "kv_transfer_params": (),
    "logits_processors": ([],),
    "mcp_servers": ([],),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "output_config": (),
    "output_format": (),
    "prediction": (),
    "prompt_embeds": (),
    "repetition_detection": (),
    "structural_tag": (),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "verbosity": (),
    "vllm_xargs": (),
    "web_search_options": (),
}
"""Fields that other servers know and this one refuses, with the values that ask for nothing
(null always does)."""

ONLY_OF_CHATS: dict[str, tuple[Any, ...]] = {
    "reasoning_effort": (),
    "tool_choice": ("none",),
    "tools": ([],),
}
"""Fields of a chat that a completion refuses, as those of UNSUPPORTED_FIELDS."""
