"""Fields of a request that its response repeats, and checks of those that do nothing else."""

from __future__ import annotations

from typing import Any

from kvasir_engine.server.openai.api_error import invalid
from kvasir_engine.server.openai_responses.responses_body import ResponsesBody

MAX_METADATA = 16
MAX_KEY_CHARS = 64
MAX_VALUE_CHARS = 512
_SUMMARIES = (None, "auto", "concise", "detailed")
_TRUNCATIONS = (None, "auto", "disabled")
INCLUDABLE = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""OpenAI's names. Those of tools that a server runs add nothing, since no answer has such calls."""


def check_repeated(body: ResponsesBody) -> None:
    """Raise a 400 for a field with a value that OpenAI's does not have, or that is not served."""
    _check_metadata(body.metadata or {})
    for name in body.include or ():
        if name not in INCLUDABLE:
            raise invalid(
                f"include has {name[:MAX_KEY_CHARS]!r}; the names are "
                f"{', '.join(sorted(INCLUDABLE))}.",
                "include",
            )
    if body.truncation not in _TRUNCATIONS:
        raise invalid('truncation must be "auto" or "disabled".', "truncation")
    if body.background:
        raise invalid(
            "background is not supported; leave it out, and read the response as a stream.",
            "background",
            "unsupported",
        )
    if body.prompt is not None:
        raise invalid(
            "prompt is not supported: no prompts are kept here; send its text as instructions.",
            "prompt",
            "unsupported",
        )
    if (body.reasoning or {}).get("summary") not in _SUMMARIES:
        raise invalid(
            'reasoning.summary must be "auto", "concise" or "detailed".', "reasoning.summary"
        )
    if body.store and not body.kept_by_router:
        raise _not_kept("store", "leave it out, or set it false")
    if body.previous_response_id is not None and not body.kept_by_router:
        raise _not_kept("previous_response_id", "send the earlier items in input")


def _not_kept(field: str, remedy: str) -> Exception:
    return invalid(
        f"{field} needs a router that keeps responses (its --response-store), and this request did "
        f"not come through one; {remedy}.",
        field,
        "unsupported",
    )


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > MAX_METADATA:
        raise invalid(
            f"metadata has {len(metadata)} entries, of at most {MAX_METADATA}.", "metadata"
        )
    for key, value in metadata.items():
        if len(key) > MAX_KEY_CHARS or len(value) > MAX_VALUE_CHARS:
            raise invalid(
                f"metadata takes keys of at most {MAX_KEY_CHARS} characters and values of at most "
                f"{MAX_VALUE_CHARS}.",
                "metadata",
            )


def repeated_fields(body: ResponsesBody) -> dict[str, Any]:
    """Return the fields of a response that are its request's, with OpenAI's defaults."""
    reasoning, text = body.reasoning or {}, body.text or {}
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": bool(body.kept_by_router and body.store is not False),
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": [_repeated_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _repeated_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a checked tool with the fields that a response's tools always have."""
    return {**tool, "parameters": tool.get("parameters"), "strict": bool(tool.get("strict"))}
