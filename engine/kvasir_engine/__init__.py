"""Kvasir's engine: `LLM` for offline use, `AsyncLLM` for asyncio, `kvasir serve` for HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvasir_engine.sampling_params import BeamSearchParams, SamplingParams

if TYPE_CHECKING:
    from kvasir_engine.async_llm import AsyncLLM
    from kvasir_engine.llm import LLM

__all__ = ["LLM", "AsyncLLM", "BeamSearchParams", "SamplingParams"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: an API process imports this package but neither torch nor the core.
    if name == "LLM":
        from kvasir_engine.llm import LLM

        return LLM
    if name == "AsyncLLM":
        from kvasir_engine.async_llm import AsyncLLM

        return AsyncLLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
