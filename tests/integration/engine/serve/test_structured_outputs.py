"""Structured outputs of the tiny model: the official client, hostile schemas, resumption."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, Field

pytestmark = pytest.mark.slow

MODEL = "tiny"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
MESSAGES: Any = [{"role": "user", "content": "Who are you?"}]
SEEDED: dict[str, Any] = {
    "model": MODEL,
    "prompt": "Go:",
    "temperature": 1.0,
    "seed": 5,
    "max_tokens": 60,
    "guided_regex": "[a-z]{12}-[0-9]{12}",
}


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=150)


@pytest.fixture(scope="module")
def engine(serve_module: Any) -> Any:
    return serve_module("builtin://kvasir-tiny", "--served-model-name", MODEL)


@pytest.fixture(scope="module")
def client(engine: Any) -> OpenAI:
    return OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=120)


def chat(client: OpenAI, **how: Any) -> Any:
    given = {"temperature": 1.0, "max_tokens": 300, "response_format": FORMAT, **how}
    return client.chat.completions.create(model=MODEL, messages=MESSAGES, **given)


def test_samples_streams_and_log_probabilities_satisfy_a_schema(client: OpenAI) -> None:
    unary = chat(client, n=4, logprobs=True, top_logprobs=2, presence_penalty=0.5)
    assert [choice.finish_reason for choice in unary.choices] == ["stop"] * 4
    texts = [choice.message.content for choice in unary.choices]
    assert all(choice.logprobs.content for choice in unary.choices)
    streamed = chat(client, stream=True)
    texts.append("".join(each.choices[0].delta.content or "" for each in streamed if each.choices))
    for text in texts:
        Draft202012Validator(PERSON).validate(json.loads(text))


def test_the_clients_own_models_are_parsed(client: OpenAI) -> None:
    completion = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Person, temperature=1.0, max_tokens=300
    )
    assert isinstance(completion.choices[0].message.parsed, Person)


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"guided_regex": r"[a-c]{3}-\d\d"}, r"[a-c]{3}-\d\d"),
        ({"guided_choice": ["red", "blue"]}, "red|blue"),
        ({"guided_grammar": 'root ::= "(" [0-9] ")"'}, r"\(\d\)"),
        ({"structured_outputs": {"regex": "x{40}"}}, "x{40}"),
    ],
)
def test_vllms_fields_do_the_same(client: OpenAI, asked: Any, pattern: str) -> None:
    completion = client.completions.create(
        model=MODEL, prompt="Go:", temperature=1.0, max_tokens=100, extra_body=asked
    )
    assert re.fullmatch(pattern, completion.choices[0].text)
    assert completion.choices[0].finish_reason == "stop"


def test_many_at_once_beside_others_that_are_free(client: OpenAI) -> None:
    def ask(number: int) -> Any:
        constrained = number % 2 == 0
        return chat(
            client,
            seed=number,
            **({} if constrained else {"response_format": {"type": "text"}, "max_tokens": 20}),
        )

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(32)))
    for number, answer in enumerate(answers):
        if number % 2 == 0:
            assert answer.choices[0].finish_reason == "stop"
            Draft202012Validator(PERSON).validate(json.loads(answer.choices[0].message.content))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"guided_regex": "("}, "to have cannot be enforced: Regex parsing error"),
        ({"guided_grammar": "root ::="}, "to have cannot be enforced: EBNF"),
        ({"guided_json": {"not": {}}}, "guided_json cannot be enforced: #/not cannot"),
        ({"guided_regex": "a", "min_tokens": 2}, "min_tokens does not work together"),
        ({"guided_regex": "a", "use_beam_search": True}, "does not work together"),
    ],
)
def test_what_cannot_be_enforced_is_a_400_of_one_sentence(
    client: OpenAI, asked: Any, words: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="Go:", max_tokens=100, extra_body=asked)
    assert words in caught.value.message


def test_a_resumed_output_goes_on_in_its_grammar(client: OpenAI, engine: Any) -> None:
    body = {**SEEDED, "return_token_ids": True}
    whole = engine.client.post("/v1/completions", json=body).json()["choices"][0]
    half = whole["token_ids"][:5]
    resumed = {**body, "resume": {"output_token_ids": half, "seed": 5}}
    rest = engine.client.post("/v1/completions", json=resumed).json()["choices"][0]
    assert rest["text"] == whole["text"]
    other = {**resumed, "guided_regex": "[A-Z]+"}
    refused = engine.client.post("/v1/completions", json=other)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "resume.output_token_ids"


@pytest.fixture(scope="module")
def two_ranks(serve_module: Any) -> Any:
    return serve_module(
        *("builtin://kvasir-tiny", "--served-model-name", MODEL, "--tensor-parallel-size", "2")
    )


LANGUAGES: dict[str, Any] = {
    "guided_regex": SEEDED["guided_regex"],
    "guided_json": PERSON,
    "guided_choice": ["a red one", "a blue one"],
    "structured_outputs": {"lark": "start: /[a-z]{12}/"},
}


def seeded(field: str, **how: Any) -> dict[str, Any]:
    """A body that asks for a form in one of the languages."""
    others = {key: value for key, value in SEEDED.items() if key != "guided_regex"}
    return {**others, "max_tokens": 200, field: LANGUAGES[field], **how}


@pytest.mark.parametrize("field", LANGUAGES)
def test_every_rank_samples_by_the_same_masks(two_ranks: Any, engine: Any, field: str) -> None:
    body = seeded(field, n=3, logprobs=1, presence_penalty=0.5, stop=["\n\n\n"])
    answers = [
        each.client.post("/v1/completions", json=body).json() for each in (engine, two_ranks)
    ]
    choices = [[it["text"] for it in answer["choices"]] for answer in answers]
    assert choices[0] == choices[1]
    assert all(it["logprobs"]["tokens"] for it in answers[1]["choices"])
    if field == "guided_regex":
        assert all(re.fullmatch(SEEDED[field], text) for text in choices[0])


@pytest.mark.parametrize("field", LANGUAGES)
def test_an_output_goes_on_in_its_grammar_on_another_engine(
    two_ranks: Any, engine: Any, field: str
) -> None:
    body = seeded(field, return_token_ids=True, frequency_penalty=0.5)
    whole = engine.client.post("/v1/completions", json=body).json()["choices"][0]
    half = whole["token_ids"][: len(whole["token_ids"]) // 2]
    resumed = {**body, "resume": {"output_token_ids": half, "seed": SEEDED["seed"]}}
    rest = two_ranks.client.post("/v1/completions", json=resumed).json()["choices"][0]
    assert (rest["text"], rest["finish_reason"]) == (whole["text"], whole["finish_reason"])
