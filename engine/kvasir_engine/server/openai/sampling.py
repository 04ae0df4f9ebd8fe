"""Sampling parameters of a request body, with the model's defaults for what it leaves out."""

from __future__ import annotations

from typing import Any

from kvasir_engine.sampling_params import PARAMETERS, SamplingParams
from kvasir_engine.server.openai.api_error import invalid
from kvasir_engine.server.openai.schema import ChatBody, CompletionBody, SamplingBody
from kvasir_engine.server.openai.structured import structured_outputs

_PLAIN_FIELDS = tuple(
    name
    for name in SamplingBody.__struct_fields__
    if name in PARAMETERS and name not in ("stop", "structured_outputs")
)
COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions."""


def completion_params(body: CompletionBody, defaults: dict[str, Any]) -> SamplingParams:
    """Parameters of /v1/completions; `max_tokens` None = up to the context."""
    given = {"max_tokens": COMPLETION_MAX_TOKENS, **defaults, **_given(body)}
    given["logprobs"] = body.logprobs
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        given["prompt_logprobs"] = body.logprobs
    return SamplingParams(**given)


def chat_params(body: ChatBody, defaults: dict[str, Any]) -> SamplingParams:
    """Parameters of /v1/chat/completions; `max_tokens` None = up to the context."""
    given = {"max_tokens": None, **defaults, **_given(body)}
    if body.max_completion_tokens is not None:
        given["max_tokens"] = body.max_completion_tokens
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
    if body.logprobs:
        given["logprobs"] = body.top_logprobs or 0
    return SamplingParams(**given)


def _given(body: SamplingBody) -> dict[str, Any]:
    _check_combinations(body)
    given = {name: value for name in _PLAIN_FIELDS if (value := getattr(body, name)) is not None}
    if (asked := structured_outputs(body)) is not None:
        given["structured_outputs"] = asked
    if body.stop is not None:
        given["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    return given


def _check_combinations(body: SamplingBody) -> None:
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise invalid(
            f"best_of ({body.best_of}) other than n ({body.n or 1}) is not supported.",
            "best_of",
            "unsupported",
        )
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options needs stream to be true.", "stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise invalid("prompt_logprobs does not work with stream.", "prompt_logprobs")
    if body.stream and body.use_beam_search:
        raise invalid("use_beam_search does not work with stream.", "use_beam_search")
    if body.resume is not None and body.use_beam_search:
        raise invalid("resume does not work with use_beam_search.", "resume")
    if body.resume is not None and body.resume.finished and not body.stream:
        raise invalid("resume.finished needs stream to be true.", "resume.finished")
