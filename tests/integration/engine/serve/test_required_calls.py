"""Calls that the tiny model has to make: the official clients, at temperature 1."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic.types import ToolUseBlock
from jsonschema import Draft202012Validator
from openai import BadRequestError, OpenAI

pytestmark = pytest.mark.slow

MODEL = "tiny"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Bergen"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS: dict[str, Any] = {"get_weather": WEATHER, "now": NOTHING}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": it}}
    for name, it in SCHEMAS.items()
]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
MESSAGES: Any = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="module")
def engine(serve_module: Any) -> Any:
    return serve_module("builtin://kvasir-tiny", "--served-model-name", MODEL)


@pytest.fixture(scope="module")
def client(engine: Any) -> OpenAI:
    return OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=120)


def ask(client: OpenAI, **how: Any) -> Any:
    given = {"messages": MESSAGES, "tools": TOOLS, "temperature": 1.0, "max_tokens": 300, **how}
    return client.chat.completions.create(model=MODEL, **given)


def check(calls: Any) -> None:
    assert calls
    for call in calls:
        arguments = json.loads(call.function.arguments)
        Draft202012Validator(SCHEMAS[call.function.name]).validate(arguments)


def test_required_answers_are_calls(client: OpenAI) -> None:
    answer = ask(client, tool_choice="required", n=4, parallel_tool_calls=False)
    for choice in answer.choices:
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert len(choice.message.tool_calls) == 1
        check(choice.message.tool_calls)


def test_a_named_function_is_called_in_a_stream(client: OpenAI) -> None:
    name, arguments, reasons = "", "", []
    for event in ask(client, tool_choice=NAMED, stream=True):
        [choice] = event.choices
        reasons.append(choice.finish_reason)
        assert not choice.delta.content
        for call in choice.delta.tool_calls or ():
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert (name, reasons[-1]) == ("get_weather", "tool_calls")
    Draft202012Validator(WEATHER).validate(json.loads(arguments))


def test_strict_functions_leave_the_choice_to_the_model(client: OpenAI) -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    question: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    answer = ask(client, tools=strict, messages=question, n=8)
    called = [choice.message.tool_calls for choice in answer.choices if choice.message.tool_calls]
    for calls in called:
        check(calls)
    assert all(choice.finish_reason for choice in answer.choices)


def test_what_begins_as_a_call_is_one_where_nobody_asks(client: OpenAI) -> None:
    question: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    answer = ask(client, messages=question, n=8, temperature=1.5)
    for choice in answer.choices:
        calls = choice.message.tool_calls or []
        assert {call.function.name for call in calls} <= {*SCHEMAS}
        # The last one may be cut off
        for call in calls if choice.finish_reason == "tool_calls" else calls[:-1]:
            assert isinstance(json.loads(call.function.arguments), dict)


def test_what_an_api_cannot_enforce_is_a_400(client: OpenAI) -> None:
    function = {"name": "f", "strict": True, "parameters": {"not": {}}}
    with pytest.raises(BadRequestError, match="of a strict function cannot be enforced: #/not"):
        ask(client, tools=[{"type": "function", "function": function}])


def test_anthropics_client_forces_a_tool(engine: Any) -> None:
    client = Anthropic(base_url=engine.url, api_key="none", max_retries=0)
    answer = client.messages.create(
        model=MODEL,
        max_tokens=300,
        messages=MESSAGES,
        tools=[{"name": name, "input_schema": it} for name, it in SCHEMAS.items()],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    [block] = answer.content
    assert answer.stop_reason == "tool_use"
    assert isinstance(block, ToolUseBlock)
    Draft202012Validator(SCHEMAS[block.name]).validate(block.input)
