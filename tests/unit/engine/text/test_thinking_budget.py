"""Which reasoning a request limits, and what is refused beside a limit."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine_server import byte_tokenizer

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.sampling_params import ParameterError, SamplingParams
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.reasoning import PromptEnd
from kvasir_engine.text.thinking_budget import limited_thinking


@pytest.fixture
def tokenizer() -> Tokenizer:
    made = byte_tokenizer()
    made.backend.add_special_tokens(["<think>", "</think>"])
    return made


def limited(
    tokenizer: Tokenizer, prompt: str = "", *, reasoning: str = "think", **params: Any
) -> Thinking | None:
    parsing = Parsing.choose(tokenizer, None, tools="none", reasoning=reasoning)
    given = SamplingParams(**{"thinking_token_budget": 5, **params})
    size = tokenizer.backend.get_vocab_size(with_added_tokens=True)
    return limited_thinking(given, parsing, tokenizer, PromptEnd(prompt), vocab_size=size)


@pytest.mark.parametrize(("prompt", "opened"), [("hi", False), ("hi<think>\n", True)])
def test_the_reasoning_behind_a_prompt_gets_the_budget(
    tokenizer: Tokenizer, prompt: str, opened: bool
) -> None:
    ids = tokenizer.backend.token_to_id
    expected = Thinking(ids("<think>"), ids("</think>"), opened, budget=5)
    assert limited(tokenizer, prompt) == expected


def test_nothing_is_limited_where_nothing_is_asked_or_the_prompt_has_ended_it(
    tokenizer: Tokenizer,
) -> None:
    assert limited(tokenizer, thinking_token_budget=None, reasoning="none") is None
    assert limited(tokenizer, "<think>\n\n</think>\n\n") is None


@pytest.mark.parametrize(
    ("reasoning", "params", "words"),
    [
        ("none", {}, "needs a model whose answers begin with reasoning"),
        ("mistral", {}, "does not work together with reasoning in the format mistral"),
        ("think", {"allowed_token_ids": [5]}, "which ends the reasoning, in allowed_token_ids"),
        ("think", {"bad_words_token_ids": [[1, 2], [3, -1]]}, "bad_words that end as"),
        ("think", {"stop_token_ids": [-1], "min_tokens": 2}, "min_tokens and stop token"),
    ],
)
def test_what_does_not_go_with_a_budget_is_refused_by_one_sentence(
    tokenizer: Tokenizer, reasoning: str, params: dict[str, Any], words: str
) -> None:
    closer = tokenizer.backend.token_to_id("</think>")
    assert closer is not None
    for name in ("bad_words_token_ids", "stop_token_ids"):
        if name in params:
            params = {**params, name: _filled(params[name], closer)}
    tokenizer = tokenizer if reasoning == "think" else byte_tokenizer()
    with pytest.raises(ParameterError, match=r"^thinking_token_budget .*; leave it out\.$") as made:
        limited(tokenizer, reasoning=reasoning, **params)
    assert (made.value.param, words in str(made.value)) == ("thinking_token_budget", True)


def _filled(value: Any, closer: int) -> Any:
    """`value` with the closer for each -1."""
    if isinstance(value, list):
        return [_filled(each, closer) for each in value]
    return closer if value == -1 else value


def test_tokens_that_the_model_lacks_end_no_reasoning(tokenizer: Tokenizer) -> None:
    parsing = Parsing.choose(tokenizer, None, tools="none", reasoning="think")
    params = SamplingParams(thinking_token_budget=1)
    with pytest.raises(ParameterError, match="tokens around the reasoning that the model has"):
        limited_thinking(params, parsing, tokenizer, PromptEnd(), vocab_size=100)


def test_lists_that_have_the_closer_go_with_a_budget(tokenizer: Tokenizer) -> None:
    closer = tokenizer.backend.token_to_id("</think>")
    assert limited(tokenizer, allowed_token_ids=[5, closer], bad_words_token_ids=[[closer, 3]])


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("hi", False),
        ("hi<think>", True),
        ("hi<think>" + "hm " * 100, True),
        ("<think>a</think>b<think>c", True),
        ("<think>a</think>b", False),
        ("<think>a</think>\n", None),
    ],
)
def test_a_prompt_of_ids_may_end_anywhere_within_the_reasoning(
    tokenizer: Tokenizer, prompt: str, opened: bool | None
) -> None:
    parsing = Parsing.choose(tokenizer, None, tools="none", reasoning="think")
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    params = SamplingParams(thinking_token_budget=1)
    made = limited_thinking(params, parsing, tokenizer, ids, vocab_size=1 << 20)
    assert (made and made.opened) is opened
