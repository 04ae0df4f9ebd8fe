from __future__ import annotations

from typing import Any

import pytest

from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.openai.sampling import chat_params, completion_params
from kvasir_engine.server.openai.schema import ChatBody, CompletionBody, ResumeBody, StreamOptions


def chat(**fields: Any) -> ChatBody:
    return ChatBody(messages=[], **fields)


def test_the_request_wins_over_the_model_and_the_model_over_openai() -> None:
    defaults = {"temperature": 0.3, "top_k": 9, "max_tokens": 99}
    assert completion_params(CompletionBody(), {}).max_tokens == 16
    assert completion_params(CompletionBody(), defaults).max_tokens == 99
    params = completion_params(CompletionBody(temperature=0.0, max_tokens=5), defaults)
    assert (params.temperature, params.top_k, params.max_tokens) == (0.0, 9, 5)


def test_a_chat_without_a_limit_has_none() -> None:
    assert chat_params(chat(), {}).max_tokens is None
    assert chat_params(chat(max_tokens=4), {}).max_tokens == 4
    assert chat_params(chat(max_tokens=4, max_completion_tokens=3), {}).max_tokens == 3


def test_logprobs_of_both_protocols() -> None:
    assert chat_params(chat(), {}).logprobs is None
    assert chat_params(chat(logprobs=True), {}).logprobs == 0
    assert chat_params(chat(logprobs=True, top_logprobs=3), {}).logprobs == 3
    assert completion_params(CompletionBody(logprobs=2), {}).prompt_logprobs is None
    assert completion_params(CompletionBody(logprobs=2, echo=True), {}).prompt_logprobs == 2
    echoed = CompletionBody(logprobs=2, echo=True, prompt_logprobs=1)
    assert completion_params(echoed, {}).prompt_logprobs == 1


def test_one_stop_string_is_a_list_of_one() -> None:
    assert chat_params(chat(stop="ab"), {}).stop == ["ab"]
    assert chat_params(chat(stop=["a", "b"]), {}).stop == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 2}, "best_of"),
        ({"stream_options": StreamOptions(include_usage=True)}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"stream": True, "use_beam_search": True}, "use_beam_search"),
        ({"resume": ResumeBody(), "use_beam_search": True}, "resume"),
        ({"resume": ResumeBody(finished=True)}, "resume.finished"),
        ({"top_logprobs": 1}, "top_logprobs"),
    ],
)
def test_fields_that_exclude_each_other(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat_params(chat(**fields), {})
    assert (caught.value.status, caught.value.param) == (400, param)
