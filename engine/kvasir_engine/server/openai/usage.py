"""Token counts as OpenAI reports them."""

from __future__ import annotations

from typing import Any

from kvasir_engine.server.generation.generation import Generation


def usage_of(generation: Generation) -> dict[str, Any]:
    """Return the usage of what the client has received so far, over all prompts and choices."""
    prompt = sum(run.request.num_prompt_tokens for run in generation.runs)
    output = sum(run.assembler.num_output_tokens for run in generation.runs)
    cached = sum(run.num_cached_tokens for run in generation.runs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
