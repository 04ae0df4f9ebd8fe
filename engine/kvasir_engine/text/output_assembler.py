"""All samples of one request, from the core's deltas to a RequestOutput."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.outputs import (
    CompletionOutput,
    PromptLogprobs,
    RequestOutput,
    RequestStateStats,
    SampleLogprobs,
)
from kvasir_engine.request import EngineRequest, FinishReason, LogprobEntry, SampleDelta
from kvasir_engine.text.logprob_dicts import logprob_dicts
from kvasir_engine.text.sample_state import SampleState, SampleUpdate


class OutputAssembler:
    """Pure and synchronous: whoever reads the core pushes deltas and takes what they add.

    Sample i answers as `request.handle + i`; a resumed request has one sample, whose index is the
    one it had. `tokenizer` None leaves all text empty.
    """

    __slots__ = (
        "_arrived",
        "_prompt",
        "_prompt_logprobs",
        "_prompt_token_ids",
        "_stats",
        "_tokenizer",
        "num_cached_tokens",
        "request",
        "samples",
        "seed",
    )

    def __init__(
        self, request: EngineRequest, tokenizer: Tokenizer | None, prompt: str | None = None
    ) -> None:
        if tokenizer is not None and not tokenizer.knows_text:
            tokenizer = None
        self.request = request
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._prompt_logprobs: list[LogprobEntry] = []
        self._prompt_token_ids: list[int] | None = None
        self._stats = RequestStateStats(arrival_time=time.time())
        self._arrived = time.monotonic()
        self.num_cached_tokens: int | None = None
        self.seed: int | None = None
        first = 0 if request.resume is None else request.resume.sample_index
        count = request.params.n if request.resume is None else 1
        self.samples = [
            SampleState(first + at, request.params, tokenizer, request.prompt_token_ids)
            for at in range(count)
        ]

    @property
    def finished(self) -> bool:
        """True once every sample has a finish reason."""
        return all(sample.finish_reason is not None for sample in self.samples)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all samples, resumed ones included: the usage."""
        return sum(len(sample.token_ids) for sample in self.samples)

    @property
    def prompt_logprobs(self) -> Sequence[LogprobEntry]:
        """Entries of the prompt's tokens so far, the first for prompt token 1."""
        return self._prompt_logprobs

    def resume(self, sent_chars: int = 0) -> SampleUpdate:
        """Replay the request's resumed output, before the first `push`.

        When the update has a finish reason the ids were the whole sample already: the request
        must not go to the core.
        """
        resumed = self.request.resume
        token_ids = [] if resumed is None else resumed.output_token_ids
        return self.samples[0].resume(token_ids, sent_chars, self._ended(token_ids))

    def _ended(self, token_ids: Sequence[int]) -> tuple[FinishReason, int | None] | None:
        """Return how resumed ids end a sample: by EOS, a stop id or their number; None if they do
        not."""
        params = self.request.params
        if not token_ids:
            return None
        last = token_ids[-1]
        if len(token_ids) > params.min_tokens:
            if last in self.request.eos_token_ids and not params.ignore_eos:
                return FinishReason.STOP, None
            if last in params.stop_token_ids:
                return FinishReason.STOP, last
        if params.max_tokens is not None and len(token_ids) >= params.max_tokens:
            return FinishReason.LENGTH, None
        return None

    def push(self, delta: SampleDelta) -> SampleUpdate:
        """Take one delta of this request."""
        if delta.seed is not None:
            self.seed = delta.seed
        if delta.num_cached_tokens is not None and self.num_cached_tokens is None:
            self.num_cached_tokens = delta.num_cached_tokens
        self._note_times(delta)
        number = delta.handle - self.request.handle
        if delta.prompt_logprobs and number == 0:
            self._prompt_logprobs.extend(delta.prompt_logprobs)
        return self.samples[number].push(delta)

    def _note_times(self, delta: SampleDelta) -> None:
        stats = self._stats
        if delta.times is not None:
            stats.queued_ts, stats.scheduled_ts = delta.times
        if delta.token_ids:
            stats.last_token_ts = time.monotonic()
            if not stats.first_token_ts:
                stats.first_token_ts = stats.last_token_ts
                stats.first_token_latency = stats.last_token_ts - self._arrived

    def output(self) -> RequestOutput:
        """Return everything so far, as `LLM.generate` returns it."""
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_ids(),
            outputs=[
                CompletionOutput(
                    index=sample.index,
                    text=sample.text,
                    token_ids=list(sample.token_ids),
                    cumulative_logprob=sample.cumulative_logprob,
                    logprobs=self._logprobs(sample.logprobs),
                    finish_reason=sample.finish_reason,
                    stop_reason=sample.stop_reason,
                )
                for sample in self.samples
            ],
            finished=self.finished,
            prompt_logprobs=self._prompt_dicts(),
            num_cached_tokens=self.num_cached_tokens,
            metrics=replace(self._stats, num_generation_tokens=self.num_output_tokens),
        )

    def _prompt_ids(self) -> list[int]:
        if self._prompt_token_ids is None:  # once: outputs of a long prompt may be many
            self._prompt_token_ids = list(self.request.prompt_token_ids)
        return self._prompt_token_ids

    def _logprobs(self, entries: list[LogprobEntry] | None) -> SampleLogprobs | None:
        return None if entries is None else logprob_dicts(entries, self._tokenizer)

    def _prompt_dicts(self) -> PromptLogprobs | None:
        if self.request.params.prompt_logprobs is None:
            return None
        return [None, *logprob_dicts(self._prompt_logprobs, self._tokenizer)]
