"""Prompt of a request and its samples."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from kvasir_engine.request import EngineRequest, SampleDelta
from kvasir_engine.text.output_assembler import OutputAssembler
from kvasir_engine.text.sample_state import SampleUpdate


@dataclass(slots=True)
class PromptRun:
    """Prompt of the request. Its samples are the choices from `first_choice` on."""

    request: EngineRequest
    assembler: OutputAssembler
    prompt_text: str | None
    first_choice: int = 0
    sent_chars: int = 0
    """Characters of a resumed sample's own text that the client has."""
    finish_sent: bool = False
    """The client has a resumed sample's finish reason: nothing of the sample is left to send."""
    cached_tokens: int | None = None
    """Cached tokens that were reported of a resumed sample before, and are reported again."""
    resumed: SampleUpdate | None = None
    stream: AsyncIterator[list[SampleDelta]] | None = None
    first_token_time: float = 0.0
    last_token_time: float = 0.0

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were found in the prefix cache."""
        if self.cached_tokens is not None:
            return self.cached_tokens
        return self.assembler.num_cached_tokens or 0

    @property
    def num_resumed_tokens(self) -> int:
        """Output tokens that were made elsewhere."""
        resume = self.request.resume
        return 0 if resume is None else len(resume.output_token_ids)
