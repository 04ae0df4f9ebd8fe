"""Sampling parameters of a request. Names and meanings are vLLM's and OpenAI's.

`SamplingParams` is the one table of these parameters: their checks, what HTTP bodies and gRPC
messages carry, the OpenAPI document and docs/sampling_parameters.md are made of it or tested
against it.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from kvasir_engine.parameter import Parameter, parameter

MAX_STOP_STRINGS = 64
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 32
MAX_BAD_WORD_CHARS = 1024
MAX_LOGITS_PROCESSORS = 16
MAX_N = 256
MAX_SHOWN_CHARS = 60
MAX_SEED = 2**63 - 1

LogitsProcessor: TypeAlias = Any
"""Function of a sample's prompt ids and output ids, lists of int, that returns a tensor, float32
[vocab], which is added to the next token's logits (sampling/logits_processors.py). No Callable:
messages are decoded by the fields' types, and have none."""


class ParameterError(ValueError):
    """A sampling parameter is out of its range. `param` names it for the API's error object."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class UnknownTokenError(ParameterError):
    """A parameter names a token that the model lacks; `text` is the token's, if it is known."""

    def __init__(self, param: str, token: int, vocab_size: int, text: str | None = None) -> None:
        shown = token if text is None else f"{token} ({text[:MAX_SHOWN_CHARS]!r})"
        super().__init__(
            param, f"{param} names token {shown}, but the vocabulary is 0 to {vocab_size - 1}."
        )
        self.token = token


def _within(ids: Collection[int], vocab_size: int) -> bool:
    # In C: a prompt may have a hundred thousand.
    if isinstance(ids, array):
        import numpy as np  # the core, which has arrays to check, has it imported

        values = np.frombuffer(ids, dtype=np.int32)
        return bool(values.min() >= 0 and values.max() < vocab_size)
    return min(ids) >= 0 and max(ids) < vocab_size


def check_token_ids(param: str, ids: Collection[int], vocab_size: int) -> None:
    """Raise UnknownTokenError for the first of a parameter's token ids that the model lacks."""
    if ids and not _within(ids, vocab_size):
        token = next(each for each in ids if not 0 <= each < vocab_size)
        raise UnknownTokenError(param, token, vocab_size)


@dataclass(slots=True)
class SamplingParams:
    """Parameters by which the tokens of one request are chosen and by which it ends.

    A parameter's place in this list is its field number in the gRPC message: new ones go last.
    """

    n: int = parameter(
        1, "Samples of each prompt, or the width of a beam search.", low=1, high=MAX_N
    )
    temperature: float = parameter(
        1.0, "Divides the logits; 0 takes the most likely token.", low=0.0, high=100.0, beams=False
    )
    top_p: float = parameter(
        1.0,
        "Sample from the most likely tokens that sum to it.",
        low=0.0,
        high=1.0,
        low_open=True,
    )
    top_k: int = parameter(
        0, "Sample from the k most likely tokens; 0 or -1 = all.", low=-1, high=2**31 - 1
    )
    min_p: float = parameter(
        0.0, "Least probability, as a share of the most likely token's.", low=0.0, high=1.0
    )
    presence_penalty: float = parameter(
        0.0, "Taken off the logits of tokens in the output.", low=-2.0, high=2.0, beams=False
    )
    frequency_penalty: float = parameter(
        0.0,
        "Taken off a token's logit for each time in the output.",
        low=-2.0,
        high=2.0,
        beams=False,
    )
    repetition_penalty: float = parameter(
        1.0,
        "Divides the logits of tokens seen; 1 = off.",
        low=0.0,
        high=100.0,
        low_open=True,
        beams=False,
    )
    seed: int | None = parameter(
        None, "Makes the tokens repeatable; null = drawn.", low=-(2**63), high=MAX_SEED
    )
    stop: list[str] = parameter(
        list, "A text or texts that end the output.", max_items=MAX_STOP_STRINGS, beams=False
    )
    stop_token_ids: list[int] = parameter(
        list, "Tokens that end the output.", max_items=MAX_STOP_TOKEN_IDS
    )
    include_stop_str_in_output: bool = parameter(False, "Leave the stop string in the text.")
    ignore_eos: bool = parameter(False, "Go on behind the model's end-of-sequence tokens.")
    min_tokens: int = parameter(
        0, "Nothing ends the output before so many tokens.", low=0, beams=False
    )
    max_tokens: int | None = parameter(
        16, "Longest output; chat and gRPC: default what the context holds.", low=1
    )
    logprobs: int | None = parameter(
        None, "Most likely tokens to return at each position; chat: true or false.", beams=False
    )
    prompt_logprobs: int | None = parameter(
        None, "As logprobs, for the prompt's tokens.", beams=False
    )
    logit_bias: dict[int, float] = parameter(
        dict, "Added to these tokens' logits; -100 to 100.", max_items=MAX_LOGIT_BIAS, beams=False
    )
    bad_words: list[str] = parameter(
        list, "Texts that the output must not have.", max_items=MAX_BAD_WORDS, beams=False
    )
    bad_words_token_ids: list[list[int]] = parameter(
        list,
        "`bad_words` as token ids, made before the core sees them.",
        max_items=4 * MAX_BAD_WORDS,
        internal=True,
    )
    allowed_token_ids: list[int] | None = parameter(
        None, "The only tokens that may be sampled.", beams=False
    )
    skip_special_tokens: bool = parameter(True, "Leave special tokens out of the text.")
    spaces_between_special_tokens: bool = parameter(
        True, "False is refused where it would change the text."
    )
    detokenize: bool = parameter(
        True, "False: token ids without text, and no stop strings. Not over HTTP."
    )
    use_beam_search: bool = parameter(False, "Search with n beams, as transformers does.")
    length_penalty: float = parameter(
        1.0,
        "A beam's score is divided by its length to this power.",
        low=-100.0,
        high=100.0,
        only_beams=True,
    )
    early_stopping: bool = parameter(
        False, "End a beam search once n beams are finished.", only_beams=True
    )
    structured_outputs: str | None = parameter(
        None,
        "Form of the output: one of json, json_object, regex, choice, grammar, structural_tag and "
        "lark.",
        beams=False,
    )
    thinking_token_budget: int | None = parameter(
        None,
        "Tokens of reasoning after which its end is forced; null = no limit.",
        low=0,
        high=2**31 - 1,
        beams=False,
    )
    logits_processors: list[LogitsProcessor] = parameter(
        list,
        "Functions of prompt and output ids to biases of the logits; of `LLM` alone.",
        max_items=MAX_LOGITS_PROCESSORS,
        beams=False,
        offline=True,
    )

    def __post_init__(self) -> None:
        given: Any = self.stop
        if isinstance(given, str):
            self.stop = [given]
        if self.top_k == -1:
            self.top_k = 0
        constraint: Any = self.structured_outputs
        if isinstance(constraint, dict):
            self.structured_outputs = json.dumps(constraint, ensure_ascii=False)

    def clone(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def verify(self, *, vocab_size: int, max_logprobs: int) -> None:
        """Raise ParameterError for the first field that is out of its range."""
        self._verify_numbers()
        self._verify_limits(max_logprobs)
        self.verify_lists()
        self._verify_biases()
        self._verify_structured_outputs()
        self.verify_vocabulary(vocab_size)
        if self.stop and not self.detokenize:
            raise ParameterError("stop", "stop strings need text; leave detokenize on.")
        if self.use_beam_search:
            self._verify_beam()
        else:
            self._verify_no_beam()

    def _verify_numbers(self) -> None:
        for name, table in _BOUNDED.items():
            value = getattr(self, name)
            if value is not None and not table.takes(value):
                raise ParameterError(name, f"{name} must {table.range}, got {value}.")

    def _verify_limits(self, max_logprobs: int) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError(
                "min_tokens",
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens}).",
            )
        for param in _LOGPROBS:
            value = getattr(self, param)
            if value is not None and not 0 <= value <= max_logprobs:
                raise ParameterError(
                    param,
                    f"{param} must be between 0 and {max_logprobs}, got {value}; "
                    "the server's --max-logprobs raises the limit.",
                )

    def verify_lists(self) -> None:
        """Raise ParameterError for the first list that is too long or has a bad text."""
        for name, limit in _MAX_ITEMS.items():
            size = len(getattr(self, name))
            if size > limit:
                raise ParameterError(name, f"{name} takes at most {limit} entries, got {size}.")
        for text in self.stop:
            if not text or len(text) > MAX_STOP_STRING_CHARS:
                raise ParameterError(
                    "stop",
                    f"a stop string must have 1 to {MAX_STOP_STRING_CHARS} characters, "
                    f"got {len(text)}.",
                )
        for text in self.bad_words:
            if len(text) > MAX_BAD_WORD_CHARS:
                raise ParameterError(
                    "bad_words",
                    f"a bad word takes at most {MAX_BAD_WORD_CHARS} characters, got {len(text)}.",
                )
        for each in self.logits_processors:
            if not callable(each):
                raise ParameterError(
                    "logits_processors",
                    "logits_processors takes functions of prompt and output ids, got "
                    f"{repr(each)[:MAX_SHOWN_CHARS]}.",
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
        allowed = self.allowed_token_ids or ()
        if len(allowed) > vocab_size:
            raise ParameterError(
                "allowed_token_ids",
                f"allowed_token_ids takes at most {vocab_size} entries, the vocabulary's size, "
                f"got {len(allowed)}.",
            )
        check_token_ids("allowed_token_ids", allowed, vocab_size)
        for ids in self.bad_words_token_ids:
            check_token_ids("bad_words", ids, vocab_size)

    @property
    def takes_grammar(self) -> bool:
        """Tell if structured outputs work together with the other parameters."""
        plain = all(getattr(self, each) == getattr(_DEFAULTS, each) for each in _NOT_WITH_GRAMMARS)
        return plain and not self.use_beam_search

    def _verify_structured_outputs(self) -> None:
        """A grammar leaves few tokens, and what bans others may leave none."""
        if self.structured_outputs is None:
            return
        for name in _NOT_WITH_GRAMMARS:
            if getattr(self, name) != getattr(_DEFAULTS, name):
                raise ParameterError(
                    name, f"{name} does not work together with structured_outputs; leave it out."
                )

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
        for name, default in _NOT_WITH_BEAMS.items():
            value = getattr(self, name)
            if value != default and not (name == "temperature" and value == 0.0):
                raise ParameterError(
                    name, f"{name} does not work together with use_beam_search; leave it out."
                )

    def _verify_no_beam(self) -> None:
        for name, default in _ONLY_WITH_BEAMS.items():
            if getattr(self, name) != default:
                raise ParameterError(
                    name, f"{name} is of beam searches; set use_beam_search, or leave it out."
                )


@dataclass(slots=True)
class BeamSearchParams:
    """Parameters of `LLM.beam_search`; names as in vLLM, meanings as in transformers."""

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


PARAMETERS: dict[str, Parameter] = {
    each.name: each.metadata["parameter"] for each in fields(SamplingParams)
}
"""The table, by name and in its order."""
_LOGPROBS = ("logprobs", "prompt_logprobs")
"""Bounded by --max-logprobs."""
_BOUNDED = {name: p for name, p in PARAMETERS.items() if p.range}
_MAX_ITEMS = {name: p.max_items for name, p in PARAMETERS.items() if p.max_items is not None}
_DEFAULTS = SamplingParams()
_NOT_WITH_BEAMS = {name: getattr(_DEFAULTS, name) for name, p in PARAMETERS.items() if not p.beams}
_NOT_WITH_GRAMMARS = ("allowed_token_ids", "bad_words", "ignore_eos", "min_tokens")
_ONLY_WITH_BEAMS = {
    name: getattr(_DEFAULTS, name) for name, p in PARAMETERS.items() if p.only_beams
}
