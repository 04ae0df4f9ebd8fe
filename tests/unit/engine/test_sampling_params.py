from __future__ import annotations

from typing import Any

import pytest

from kvasir_engine.sampling_params import (
    MAX_BAD_WORD_TOKENS,
    MAX_LOGIT_BIAS,
    MAX_N,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    PARAMETERS,
    ParameterError,
    SamplingParams,
)

NAN, INF = float("nan"), float("inf")


def verify(**fields: Any) -> None:
    SamplingParams(**fields).verify(vocab_size=100, max_logprobs=20)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": MAX_N, "temperature": 0.0, "top_p": 1e-9, "min_p": 1.0},
        {"top_k": -1},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 0.01},
        {"max_tokens": None, "min_tokens": 500},
        {"max_tokens": 5, "min_tokens": 5},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"logprobs": 20, "prompt_logprobs": 0},
        {"stop": "x" * MAX_STOP_STRING_CHARS},
        {"stop": ["x"] * MAX_STOP_STRINGS},
        {"logit_bias": {0: -100.0, 99: 100.0}},
        {"allowed_token_ids": [0], "stop_token_ids": [99]},
        {"use_beam_search": True, "n": 4, "temperature": 0.0, "length_penalty": -1.0},
    ],
)
def test_what_is_in_range_passes(fields: dict[str, Any]) -> None:
    verify(**fields)


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"n": 0}, "n", "n must be a number in [1, 256], got 0."),
        ({"n": MAX_N + 1}, "n", "got 257"),
        ({"n": 10**400}, "n", "must be a number in [1, 256]"),
        ({"temperature": NAN}, "temperature", "in [0, 100], got nan."),
        ({"temperature": -0.1}, "temperature", "got -0.1"),
        ({"temperature": INF}, "temperature", "got inf"),
        ({"top_p": 0.0}, "top_p", "top_p must be a number in (0, 1], got 0.0."),
        ({"top_p": 1.1}, "top_p", "got 1.1"),
        ({"top_k": -2}, "top_k", "got -2"),
        ({"min_p": 1.5}, "min_p", "got 1.5"),
        ({"presence_penalty": 2.5}, "presence_penalty", "in [-2, 2]"),
        ({"frequency_penalty": NAN}, "frequency_penalty", "got nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty", "in (0, 100]"),
        ({"length_penalty": INF}, "length_penalty", "got inf"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0."),
        ({"max_tokens": -3}, "max_tokens", "got -3"),
        ({"min_tokens": -1}, "min_tokens", "at least 0"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens", "(5) must not exceed max_tokens (4)"),
        ({"seed": 2**63}, "seed", "64 bits"),
        ({"logprobs": 21}, "logprobs", "between 0 and 20, got 21; the server's --max-logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "got -1"),
        ({"stop": ["x"] * (MAX_STOP_STRINGS + 1)}, "stop", "at most 64 entries, got 65"),
        ({"stop": [""]}, "stop", "1 to 1024 characters, got 0"),
        ({"stop": "x" * (MAX_STOP_STRING_CHARS + 1)}, "stop", "got 1025"),
        ({"stop_token_ids": [1] * (MAX_STOP_TOKEN_IDS + 1)}, "stop_token_ids", "at most 128"),
        ({"stop_token_ids": [100]}, "stop_token_ids", "token 100, but the vocabulary is 0 to 99"),
        ({"logit_bias": {-1: 0.0}}, "logit_bias", "token -1"),
        ({"logit_bias": {1: 101.0}}, "logit_bias", "between -100 and 100, got 101.0"),
        ({"logit_bias": {1: NAN}}, "logit_bias", "got nan"),
        ({"logit_bias": dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 0.0)}, "logit_bias", "at most"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "must not be empty"),
        ({"allowed_token_ids": [5, 100]}, "allowed_token_ids", "token 100"),
        ({"logits_processors": [5]}, "logits_processors", "prompt and output ids, got 5"),
        ({"logits_processors": [len] * 17}, "logits_processors", "at most 16"),
        ({"bad_words": ["x"] * 129}, "bad_words", "at most 128"),
        ({"bad_words_token_ids": [[]]}, "bad_words", "1 to 32 tokens long, got 0"),
        ({"bad_words_token_ids": [[1] * (MAX_BAD_WORD_TOKENS + 1)]}, "bad_words", "got 33"),
        ({"use_beam_search": True, "temperature": 0.5}, "temperature", "use_beam_search"),
        ({"use_beam_search": True, "stop": "x"}, "stop", "leave it out"),
        ({"use_beam_search": True, "logprobs": 1}, "logprobs", "use_beam_search"),
        ({"length_penalty": 2.0}, "length_penalty", "set use_beam_search, or leave it out"),
        ({"early_stopping": True}, "early_stopping", "set use_beam_search, or leave it out"),
        ({"stop": "x", "detokenize": False}, "stop", "leave detokenize on"),
    ],
)
def test_what_is_out_of_range_names_field_and_value(
    fields: dict[str, Any], param: str, sentence: str
) -> None:
    with pytest.raises(ParameterError) as error:
        verify(**fields)
    assert error.value.param == param
    assert sentence in str(error.value)


def test_one_stop_string_and_top_k_off_are_normalised() -> None:
    params = SamplingParams(stop="END", top_k=-1)
    assert (params.stop, params.top_k) == (["END"], 0)


def test_a_clone_changes_only_what_is_named() -> None:
    params = SamplingParams(temperature=0.3, stop=["x"])
    clone = params.clone(n=4)
    assert (clone.n, clone.temperature, clone.stop) == (4, 0.3, ["x"])
    assert params.n == 1


def test_fields_are_what_a_body_may_name() -> None:
    assert {"n", "temperature", "use_beam_search", "bad_words"} <= PARAMETERS.keys()
    assert SamplingParams(**{name: getattr(SamplingParams(), name) for name in PARAMETERS}) == (
        SamplingParams()
    )
