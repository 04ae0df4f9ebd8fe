"""Requests as the core takes them, and what it gives back for each token.

These are dataclasses so that the core runs without msgspec; between processes msgspec encodes
them as they stand (messages.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvasir_engine.grammar.matcher import Grammar, GrammarMatcher
from kvasir_engine.grammar.thinking import Thinking, begin
from kvasir_engine.sampling_params import SamplingParams, check_token_ids


class FinishReason(StrEnum):
    """Reason for which a sample ended; the values are OpenAI's, and `abort` and `error` beside
    them."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True)
class Resume:
    """Output that another engine (or an earlier life of this one) already produced.

    It is prefilled like a prompt but counts as output for penalties, limits, stops, the random
    generator's position, usage and detokenising.
    """

    output_token_ids: list[int] = field(default_factory=list)
    seed: int | None = None
    sample_index: int = 0


@dataclass(slots=True)
class EngineRequest:
    """Request to the engine: a prompt, how to sample it, and the handles its tokens come back
    under.

    `handle` is the client's own number: sample i answers as handle + i, so a client spaces its
    handles by n; negative ones are the core's own requests, which no client hears of.
    `block_hashes` are the prompt's full blocks' hashes, 16 bytes each in one bytes object, made
    where the request was tokenised; empty = the core makes them. `prompt_token_ids` are an array of
    32-bit integers from there on: each entry of a list costs time wherever it is copied, checked
    or sent.
    """

    request_id: str
    handle: int
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    eos_token_ids: list[int] = field(default_factory=list)
    block_hashes: bytes = b""
    cache_salt: str = ""
    lora: str = ""
    """LoRA adapter that it is for, whose blocks no other request finds; "" = the model itself."""
    priority: int = 0
    """Lower is served earlier, as in vLLM."""
    resume: Resume | None = None
    client: int = 0
    """The API process that sent it."""
    constraint: str = ""
    """`params.structured_outputs` as it is compiled (grammar/constraint.py); empty = none."""
    may_be_free: bool = False
    """The output is free where the constraint cannot be enforced, since nobody asked for it."""
    thinking: Thinking | None = None
    """Reasoning that stands before what is constrained, or has a budget."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt, without resumed output."""
        return len(self.prompt_token_ids)

    def all_stop_ids(self) -> list[int]:
        """Return the EOS ids, unless they are ignored, and the stop ids."""
        eos = [] if self.params.ignore_eos else self.eos_token_ids
        return [*eos, *self.params.stop_token_ids]

    def matcher(self, grammar: Grammar | None) -> GrammarMatcher | None:
        """Return the state of a sample without output in the grammar of the constraint; None if
        any token may always follow. What was asked for has to come: reasoning before it is not the
        end."""
        barred = [] if self.may_be_free else self.eos_token_ids
        return begin(grammar, self.all_stop_ids(), self.thinking, barred)

    def verify_vocabulary(self, vocab_size: int) -> None:
        """Raise ParameterError for the first token id that the model lacks.

        Ids index the model's embedding and the rows of its logits: one beyond their end may end
        the engine, or change another request's tokens.
        """
        check_token_ids("prompt", self.prompt_token_ids, vocab_size)
        if self.resume is not None:
            check_token_ids("resume.output_token_ids", self.resume.output_token_ids, vocab_size)
        check_token_ids("eos_token_ids", self.eos_token_ids, vocab_size)
        self.params.verify_vocabulary(vocab_size)


@dataclass(slots=True)
class LogprobEntry:
    """Log-probability of one token with its rank (1 = most likely), and the k best beside it."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True)
class SampleDelta:
    """Tokens that one step added to one sample.

    `token_ids` holds the new tokens (usually one; none when only the end is reported).
    `prompt_logprobs` continues from where the last delta of this sample ended; entry 0 of the
    whole is for prompt token 1, since token 0 has no prediction.
    """

    handle: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop id (or, set by the API process, the stop string) that ended it; None for EOS."""
    logprobs: list[LogprobEntry] | None = None
    prompt_logprobs: list[LogprobEntry] | None = None
    num_cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; in a sample's first delta only."""
    seed: int | None = None
    """The effective seed; in a sample's first delta only."""
    times: tuple[float, float] | None = None
    """When the request was queued and first planned, seconds of the monotonic clock; in its lead's
    first delta only."""
    error: str | None = None
    """Sentence that explains FinishReason.ERROR."""
    cumulative_logprob: float | None = None
    """Beam search: the score of the beam (the others add up their logprobs themselves)."""
