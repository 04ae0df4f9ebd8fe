"""What a request asks of the sampler. Names and meanings are vLLM's and OpenAI's."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import Any

MAX_STOP_STRINGS = 64
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 32
MAX_N = 256
MAX_SEED = 2**63 - 1


class ParameterError(ValueError):
    """A sampling parameter is out of its range. `param` names it for the API's error object."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def check_token_ids(param: str, ids: Collection[int], vocab_size: int) -> None:
    """Raise ParameterError for the first of a parameter's token ids that the model lacks."""
    # Two passes in C: a prompt may have a hundred thousand.
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        token = next(each for each in ids if not 0 <= each < vocab_size)
        raise ParameterError(
            param, f"{param} names token {token}, but the vocabulary is 0 to {vocab_size - 1}."
        )


@dataclass(slots=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    `temperature` 0 is greedy. `top_k` 0 or -1, `top_p` 1 and `min_p` 0 mean "off". `logprobs` = k
    returns the sampled token's log-probability and the k most likely ones, of the raw logits;
    0 returns only the sampled token's. `seed` None draws one at admission. `max_tokens` None
    means up to the model's context.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    """A plain string is taken as a list of one."""
    stop_token_ids: list[int] = field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)
    bad_words: list[str] = field(default_factory=list)
    bad_words_token_ids: list[list[int]] = field(default_factory=list)
    """`bad_words` as token ids, made by whoever holds the tokenizer before the core sees it."""
    allowed_token_ids: list[int] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    detokenize: bool = True
    use_beam_search: bool = False
    """n is then the beam width; `length_penalty` and `early_stopping` have HF's meaning."""
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        given: Any = self.stop
        if isinstance(given, str):
            self.stop = [given]
        if self.top_k == -1:
            self.top_k = 0

    @property
    def greedy(self) -> bool:
        """True when the most likely token is taken and no random number is drawn."""
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """True when token history changes the logits."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    def clone(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def verify(self, *, vocab_size: int, max_logprobs: int) -> None:
        """Raise ParameterError for the first field that is out of its range."""
        self._verify_numbers()
        self._verify_limits(max_logprobs)
        self._verify_lists()
        self._verify_biases()
        self.verify_vocabulary(vocab_size)
        if self.use_beam_search:
            self._verify_beam()

    def _verify_numbers(self) -> None:
        for param, low, high, low_open in _RANGES:
            value = getattr(self, param)
            if (
                not math.isfinite(value)
                or value > high
                or value < low
                or (low_open and value == low)
            ):
                bracket = "(" if low_open else "["
                raise ParameterError(
                    param, f"{param} must be a number in {bracket}{low:g}, {high:g}], got {value}."
                )

    def _verify_limits(self, max_logprobs: int) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ParameterError(
                "max_tokens", f"max_tokens must be at least 1, got {self.max_tokens}."
            )
        if self.min_tokens < 0:
            raise ParameterError(
                "min_tokens", f"min_tokens must be at least 0, got {self.min_tokens}."
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError(
                "min_tokens",
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens}).",
            )
        if self.seed is not None and not -(2**63) <= self.seed <= MAX_SEED:
            raise ParameterError("seed", f"seed must fit in 64 bits, got {self.seed}.")
        for param in ("logprobs", "prompt_logprobs"):
            value = getattr(self, param)
            if value is not None and not 0 <= value <= max_logprobs:
                raise ParameterError(
                    param,
                    f"{param} must be between 0 and {max_logprobs}, got {value}; "
                    "the server's --max-logprobs raises the limit.",
                )

    def _verify_lists(self) -> None:
        for param, limit in _LIST_LIMITS:
            size = len(getattr(self, param))
            if size > limit:
                raise ParameterError(param, f"{param} takes at most {limit} entries, got {size}.")
        for text in self.stop:
            if not text or len(text) > MAX_STOP_STRING_CHARS:
                raise ParameterError(
                    "stop",
                    f"a stop string must have 1 to {MAX_STOP_STRING_CHARS} characters, "
                    f"got {len(text)}.",
                )
        for ids in self.bad_words_token_ids:
            if not 1 <= len(ids) <= MAX_BAD_WORD_TOKENS:
                raise ParameterError(
                    "bad_words",
                    f"a bad word must be 1 to {MAX_BAD_WORD_TOKENS} tokens long, got {len(ids)}.",
                )

    def verify_vocabulary(self, vocab_size: int) -> None:
        """Raise ParameterError for the first token id that the model lacks."""
        check_token_ids("logit_bias", self.logit_bias, vocab_size)
        check_token_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        check_token_ids("allowed_token_ids", self.allowed_token_ids or (), vocab_size)
        for ids in self.bad_words_token_ids:
            check_token_ids("bad_words", ids, vocab_size)

    def _verify_biases(self) -> None:
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ParameterError("allowed_token_ids", "allowed_token_ids must not be empty.")
        for token, bias in self.logit_bias.items():
            if not -100.0 <= bias <= 100.0:
                raise ParameterError(
                    "logit_bias",
                    f"logit_bias for token {token} must be between -100 and 100, got {bias}.",
                )

    def _verify_beam(self) -> None:
        for param, off in (
            ("temperature", (0.0, 1.0)),
            ("stop", ([],)),
            ("logprobs", (None,)),
            ("prompt_logprobs", (None,)),
            ("presence_penalty", (0.0,)),
            ("frequency_penalty", (0.0,)),
            ("repetition_penalty", (1.0,)),
            ("min_tokens", (0,)),
            ("bad_words", ([],)),
            ("logit_bias", ({},)),
            ("allowed_token_ids", (None,)),
        ):
            if getattr(self, param) not in off:
                raise ParameterError(
                    param, f"{param} does not work together with use_beam_search; leave it out."
                )


@dataclass(slots=True)
class BeamSearchParams:
    """What `LLM.beam_search` takes; names as in vLLM, meanings as in transformers."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0
    early_stopping: bool = False

    def sampling_params(self) -> SamplingParams:
        """The same as a request's parameters."""
        return SamplingParams(
            n=self.beam_width,
            use_beam_search=True,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
        )


_RANGES: tuple[tuple[str, float, float, bool], ...] = (
    ("n", 1, MAX_N, False),
    ("temperature", 0.0, 100.0, False),
    ("top_p", 0.0, 1.0, True),
    ("top_k", 0, 2**31 - 1, False),
    ("min_p", 0.0, 1.0, False),
    ("presence_penalty", -2.0, 2.0, False),
    ("frequency_penalty", -2.0, 2.0, False),
    ("repetition_penalty", 0.0, 100.0, True),
    ("length_penalty", -100.0, 100.0, False),
)

_LIST_LIMITS: tuple[tuple[str, int], ...] = (
    ("stop", MAX_STOP_STRINGS),
    ("stop_token_ids", MAX_STOP_TOKEN_IDS),
    ("logit_bias", MAX_LOGIT_BIAS),
    ("bad_words", MAX_BAD_WORDS),
    ("bad_words_token_ids", 4 * MAX_BAD_WORDS),
)

FIELDS: frozenset[str] = frozenset(f.name for f in fields(SamplingParams))
"""Every parameter's name, for whoever reads them from a request body."""
