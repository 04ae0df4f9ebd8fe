"""Return values of `LLM.generate`. Fields and meanings are vLLM's."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Logprob:
    """A token's log-probability, its rank in the vocabulary (1 = most likely) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


SampleLogprobs = list[dict[int, Logprob]]
PromptLogprobs = list[dict[int, Logprob] | None]


@dataclass(slots=True)
class CompletionOutput:
    """Output of one sample of a request."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """True once it has a finish reason."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestStateStats:
    """Times of a request. Those in _ts are seconds of the monotonic clock; 0 = not yet."""

    arrival_time: float = 0.0
    """Unix seconds."""
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    """Time of the plan of its first step."""
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    """Seconds from arrival to the first token."""
    num_generation_tokens: int = 0
    """Tokens of all samples."""

    @property
    def time_in_queue(self) -> float:
        """Seconds that it waited for its first step."""
        return self.scheduled_ts - self.queued_ts


@dataclass(slots=True)
class RequestOutput:
    """A request's prompt and its samples so far."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    prompt_logprobs: PromptLogprobs | None = None
    num_cached_tokens: int | None = None
    metrics: RequestStateStats | None = field(default=None, compare=False)


class GenerationError(RuntimeError):
    """A step failed; the requests it computed ended with finish_reason "error".

    `outputs` has every request of the call, also those that have finished.
    """

    def __init__(self, reason: str, outputs: list[RequestOutput]) -> None:
        super().__init__(reason)
        self.outputs = outputs


@dataclass(slots=True)
class BeamSearchSequence:
    """Beam of a result. `cum_logprob` is its score: summed log-probabilities over length **
    penalty."""

    tokens: list[int]
    """Prompt and generated tokens, as in vLLM."""
    text: str
    cum_logprob: float | None
    finish_reason: str | None


@dataclass(slots=True)
class BeamSearchOutput:
    """The beams of one prompt, best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)
