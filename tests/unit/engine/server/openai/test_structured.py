"""The fields that ask for a form of the answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.openai.schema import SamplingBody
from kvasir_engine.server.openai.structured import field_that_asks, structured_outputs
from kvasir_engine.text.parsing.message_parser import Parsing

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            {"json": SCHEMA},
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {}}},
            {"structural_tag": {"type": "structural_tag", "format": {}}},
        ),
        ({"structured_outputs": {"regex": "a", "json": None}}, {"regex": "a"}),
        ({"structured_outputs": {"choice": ["a"], "disable_fallback": True}}, {"choice": ["a"]}),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_regex": "é"}, {"regex": "é"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": "root ::= 'a'"}, {"grammar": "root ::= 'a'"}),
        ({"guided_regex": "a", "response_format": {"type": "text"}}, {"regex": "a"}),
    ],
)
def test_each_field_asks_for_the_same(fields: dict[str, Any], asked: Any) -> None:
    body = SamplingBody(**fields)
    text = structured_outputs(body)
    assert (None if text is None else json.loads(text)) == asked
    assert asked is None or field_that_asks(body) in fields


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": "json"}, "response_format.type", "must be an object whose type"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_schema"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "must be an object with a schema",
        ),
        ({"structured_outputs": "a"}, "structured_outputs", "must be an object"),
        (
            {"guided_json": SCHEMA, "response_format": {"type": "json_object"}},
            "guided_json",
            "response_format and guided_json exclude each other",
        ),
    ],
)
def test_what_is_no_form_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        structured_outputs(SamplingBody(**fields))
    assert caught.value.param == param
    assert words in caught.value.message


async def reply(start_server: Any, *, marked: bool, **fields: Any) -> tuple[Any, Any]:
    """Chat with a model that thinks; return the server and its reply."""
    server = await start_server()
    tokenizer = server.core.tokenizer
    if marked:
        tokenizer.backend.add_special_tokens(["<think>", "</think>"])
    parsing = Parsing.choose(tokenizer, None, tools="none", reasoning="think")
    state = server.app.state.server
    state.preparer._parsing = parsing
    intake = state.intake(None)
    intake.maker = replace(intake.maker, parsing=parsing, vocab_size=1 << 20)
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    return server, await server.post("/v1/chat/completions", {**chat, **fields})


async def test_the_form_of_a_chat_begins_behind_its_reasoning(start_server: Any) -> None:
    server, answer = await reply(start_server, marked=True, guided_regex="a", n=2)
    assert answer.status_code == 200, answer.text
    [request] = server.core.requests
    ids = server.core.tokenizer.backend.token_to_id
    assert (request.thinking.opener, request.thinking.closer) == (ids("<think>"), ids("</think>"))
    assert request.thinking.opened is False


async def test_a_chat_without_a_form_thinks_as_it_likes(start_server: Any) -> None:
    server, answer = await reply(start_server, marked=False)
    assert answer.status_code == 200, answer.text
    [request] = server.core.requests
    assert request.thinking is None


async def test_reasoning_without_tokens_is_a_part_of_the_form(start_server: Any) -> None:
    server, answer = await reply(start_server, marked=False, guided_regex="a")
    assert answer.status_code == 200, answer.text
    [request] = server.core.requests
    assert request.thinking is None
    assert request.constraint.startswith("lark:start: ")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"guided_grammar": 'root ::= "a"'},
            "guided_grammar does not work together with grammar behind reasoning in the format "
            "think.",
        ),
        ({"guided_json": {"not": {}}}, "guided_json cannot be enforced: #/not cannot be"),
    ],
)
async def test_what_cannot_stand_behind_such_reasoning_is_refused(
    start_server: Any, fields: dict[str, Any], words: str
) -> None:
    _, answer = await reply(start_server, marked=False, **fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == next(iter(fields))
    assert words in error["message"]


@pytest.mark.parametrize("form", [{}, {"guided_regex": "a"}])
async def test_a_budget_limits_the_reasoning_of_a_chat(
    start_server: Any, form: dict[str, Any]
) -> None:
    server, answer = await reply(start_server, marked=True, thinking_token_budget=0, **form)
    assert answer.status_code == 200, answer.text
    [request] = server.core.requests
    closer = server.core.tokenizer.backend.token_to_id("</think>")
    assert (request.thinking.closer, request.thinking.budget) == (closer, 0)


async def test_a_budget_of_a_completion_looks_at_the_end_of_its_prompt(start_server: Any) -> None:
    server, _ = await reply(start_server, marked=True)
    body = {"model": "tiny", "prompt": "hi<think>", "thinking_token_budget": 7}
    assert (await server.post("/v1/completions", body)).status_code == 200
    thinking = server.core.requests[-1].thinking
    assert (thinking.opened, thinking.budget) == (True, 7)


@pytest.mark.parametrize(
    ("marked", "budget", "message"),
    [
        (
            False,
            3,
            "thinking_token_budget does not work together with reasoning in the format think; "
            "leave it out.",
        ),
        (True, -1, "thinking_token_budget must be a number in [0, 2.14748e+09], got -1."),
    ],
)
async def test_a_budget_that_cannot_be_kept_is_refused(
    start_server: Any, marked: bool, budget: int, message: str
) -> None:
    _, answer = await reply(start_server, marked=marked, thinking_token_budget=budget)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "thinking_token_budget")
    assert error["message"] == message
