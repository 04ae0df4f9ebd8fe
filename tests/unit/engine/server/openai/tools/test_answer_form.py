"""Forms of answers: those that a body asks for, and those that may be left out."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine_server import byte_tokenizer

from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.openai.schema import ChatBody
from kvasir_engine.server.openai.tools.answer_form import AnswerForm, answer_form
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.reasoning import PromptEnd

TOKENIZER = byte_tokenizer()
TOOLS = [{"type": "function", "function": {"name": "now"}}]
THINKS = byte_tokenizer()
THINKS.backend.add_special_tokens(["<think>", "</think>"])


def form(
    params: SamplingParams | None = None,
    *,
    reasoning: str = "none",
    end: PromptEnd | None = None,
    parser: str = "hermes",
    **fields: Any,
) -> AnswerForm:
    body = ChatBody(messages=[], **fields)
    tokenizer = THINKS if reasoning == "think" else TOKENIZER
    parsing = Parsing.choose(tokenizer, None, tools=parser, reasoning=reasoning)
    given = params or SamplingParams()
    return answer_form(body, given, parsing, tokenizer, end or PromptEnd())


def test_tools_alone_give_a_form_that_may_be_left_out() -> None:
    made = form(tools=TOOLS)
    assert made.may_be_free
    assert "<tool_call>" in str(made.params.structured_outputs)
    asked = form(tools=TOOLS, tool_choice="required")
    assert asked.params.structured_outputs
    assert not asked.may_be_free
    assert form() == AnswerForm(SamplingParams())


@pytest.mark.parametrize(
    ("params", "fields"),
    [
        (SamplingParams(ignore_eos=True), {}),
        (SamplingParams(min_tokens=2, max_tokens=9), {}),
        (SamplingParams(n=2, use_beam_search=True), {}),
        (SamplingParams(), {"chat_template_kwargs": {"builtin_tools": ["python"]}}),
    ],
)
def test_it_is_left_out_where_it_does_not_go(
    params: SamplingParams, fields: dict[str, Any]
) -> None:
    assert form(params, **{"tools": TOOLS, **fields}) == AnswerForm(params)


def test_a_form_of_calls_begins_behind_the_reasoning() -> None:
    made = form(reasoning="think", tools=TOOLS)
    assert made.thinking is not None
    assert made.may_be_free
    text = form(reasoning="granite", tools=TOOLS)
    assert text.thinking is None
    assert "thought process" in str(text.params.structured_outputs)


OBJECT = {"type": "json_object"}
AS_OBJECT = SamplingParams(structured_outputs='{"json_object": true}')


@pytest.mark.parametrize("reasoning", ["none", "think", "granite"])
def test_an_answer_calls_or_has_the_form_that_is_asked_for(reasoning: str) -> None:
    made = form(AS_OBJECT, reasoning=reasoning, tools=TOOLS, response_format=OBJECT)
    assert not made.may_be_free
    assert (made.thinking is not None) is (reasoning == "think")
    lark = str(made.params.structured_outputs)
    assert "<tool_call>" in lark
    assert r"{\"x-guidance\"" in lark or "%json" in lark
    assert ("thought process" in lark) is (reasoning == "granite")


def test_without_calls_the_form_is_that_of_the_answer() -> None:
    assert form(AS_OBJECT, tools=TOOLS, tool_choice="none").params == AS_OBJECT


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ('{"grammar": "root ::= \\"a\\""}', {"structured_outputs": {"grammar": 'root ::= "a"'}}),
        (
            '{"json_object": true}',
            {"structured_outputs": {"json_object": True}, "parser": "pythonic"},
        ),
    ],
)
def test_forms_that_do_not_go_with_calls_are_refused(asked: str, fields: dict[str, Any]) -> None:
    params = SamplingParams(structured_outputs=asked)
    with pytest.raises(ApiError, match="structured_outputs does not work together with tools"):
        form(params, tools=TOOLS, **fields)
