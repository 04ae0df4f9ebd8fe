"""What an engine does alike with chats, responses and messages that are wrong, or are cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.answer_texts import REASONING_ANSWERS
from support.engine_server import EOS, byte_tokenizer

from kvasir.text.chat_template import ChatTemplate
from kvasir_engine.text.parsing.message_parser import Parsing

TEMPLATE = """{{ tools }}{% for m in messages -%}
<{{ m.role }}>{{ m.content or m.tool_calls[0].function.name }}{% endfor %}"""
THOUGHT = next(each for each in REASONING_ANSWERS if each.reasoning and each.content)
USER = {"role": "user", "content": "hi"}
OBJECT: dict[str, Any] = {"type": "object"}


class Chats:
    path = "/v1/chat/completions"
    ask: dict[str, Any] = {"messages": [USER], "max_tokens": 14}
    schema_field = "function.parameters"
    form = {"response_format": {"type": "json_object"}}

    @staticmethod
    def tool(name: str, schema: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    @staticmethod
    def choice(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name}}

    @staticmethod
    def after_result(text: str) -> dict[str, Any]:
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        result = {"role": "tool", "tool_call_id": "a", "content": text}
        return {"messages": [USER, {"role": "assistant", "tool_calls": [call]}, result]}


class Responses:
    path = "/v1/responses"
    ask: dict[str, Any] = {"input": [USER], "max_output_tokens": 14}
    schema_field = "parameters"
    form = {"text": {"format": {"type": "json_object"}}}

    @staticmethod
    def tool(name: str, schema: Any) -> dict[str, Any]:
        return {"type": "function", "name": name, "parameters": schema}

    @staticmethod
    def choice(name: str) -> dict[str, Any]:
        return {"type": "function", "name": name}

    @staticmethod
    def after_result(text: str) -> dict[str, Any]:
        call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
        return {
            "input": [USER, call, {"type": "function_call_output", "call_id": "a", "output": text}]
        }


class Messages:
    path = "/v1/messages"
    ask: dict[str, Any] = {"messages": [USER], "max_tokens": 14}
    schema_field = "input_schema"
    form = {"output_config": {"format": {"type": "json_schema", "schema": OBJECT}}}

    @staticmethod
    def tool(name: str, schema: Any) -> dict[str, Any]:
        return {"name": name, "input_schema": schema}

    @staticmethod
    def choice(name: str) -> dict[str, Any]:
        return {"type": "tool", "name": name}

    @staticmethod
    def after_result(text: str) -> dict[str, Any]:
        call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "a", "content": text}
        return {
            "messages": [
                USER,
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [result]},
            ]
        }


@pytest.fixture(params=[Chats, Responses, Messages], ids=lambda each: each.path)
def protocol(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def server(start_server: Any) -> Any:
    """One whose model calls and thinks; so do the processes that read its large bodies."""
    formats = {"tools": "hermes", "reasoning": THOUGHT.format}
    model = {
        "chat_template": ChatTemplate(TEMPLATE),
        "parsing": Parsing.choose(byte_tokenizer(), None, **formats),
    }
    return await start_server(
        model=model,
        chat_template=TEMPLATE,
        tool_call_parser=formats["tools"],
        reasoning_parser=formats["reasoning"],
    )


async def sentence(server: Any, protocol: Any, fields: dict[str, Any]) -> str:
    """The sentence of a 400, which has the protocol's form."""
    answer = await server.post(protocol.path, {**protocol.ask, **fields})
    assert answer.status_code == 400, answer.text
    content = answer.json()
    error = content["error"]
    assert error["type"] == "invalid_request_error"
    if protocol is Messages:
        assert content == {"type": "error", "error": {"type": error["type"], **error}}
    else:
        assert content.keys() == {"error"}
        assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    return str(error["message"])


def defined(**schemas: Any) -> dict[str, Any]:
    """The schema of an object whose `a` is the first of these."""
    return {**OBJECT, "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": schemas}


BAD: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "a choice of an unknown tool": (
        lambda each: {"tools": [each.tool("f", OBJECT)], "tool_choice": each.choice("g")},
        "tool_choice names 'g', which is not in tools.",
    ),
    "a choice of a tool where there are none": (
        lambda each: {"tool_choice": each.choice("g")},
        "tool_choice names 'g', which is not in tools.",
    ),
    "a name twice": (
        lambda each: {"tools": [each.tool("f", OBJECT)] * 2},
        "name 'f' stands twice (tools[0] has it too); names must differ.",
    ),
    "ten thousand tools": (
        lambda each: {"tools": [each.tool(f"f{at}", OBJECT) for at in range(10_000)]},
        "tools takes at most 1024 tools, got 10000; leave some out.",
    ),
    "a schema that is itself": (
        lambda each: {"tools": [each.tool("f", defined(A={"$ref": "#/$defs/A"}))]},
        "$ref '#/$defs/A' leads back to itself without a schema; give it one.",
    ),
    "schemas that are each other": (
        lambda each: {
            "tools": [
                each.tool("f", defined(A={"$ref": "#/$defs/B"}, B={"$ref": "#/$defs/A"})),
            ]
        },
        "$ref '#/$defs/A' leads back to itself without a schema; give it one.",
    ),
    "a result of 2 MB": (
        lambda each: each.after_result("x" * 2_000_000),
        "characters, which cannot fit the model's context of 512 tokens; shorten it.",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_gets_one_sentence(server: Any, protocol: Any, name: str) -> None:
    fields, expected = BAD[name]
    made = await sentence(server, protocol, fields(protocol))
    assert made.endswith(expected)
    if "$ref" in expected:
        assert made.startswith(f"tools[0].{protocol.schema_field}: ")
    assert server.core.requests == []


async def test_a_form_may_stand_beside_tools(server: Any, protocol: Any) -> None:
    body = {**protocol.ask, "tools": [protocol.tool("f", OBJECT)], **protocol.form}
    answer = await server.post(protocol.path, body)
    assert answer.status_code == 200, answer.text
    (request,) = server.core.requests
    assert request.params.structured_outputs is not None


async def test_a_schema_that_goes_deeper_at_each_turn_is_taken(server: Any, protocol: Any) -> None:
    schema = {**OBJECT, "properties": {"child": {"$ref": "#"}}}
    body = {**protocol.ask, "tools": [protocol.tool("f", schema)]}
    assert (await server.post(protocol.path, body)).status_code == 200


async def test_places_are_those_of_the_body_that_was_sent(start_server: Any, protocol: Any) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}")
    server = await start_server(model={"chat_template": template})
    fields = protocol.after_result("x")
    at = 1
    if protocol is Messages:
        fields["system"] = "Be"
    elif protocol is Responses:
        fields["instructions"] = "Be"
    else:
        fields["messages"].insert(0, {"role": "system", "content": "Be"})
        at = 2
    name = "input" if protocol is Responses else "messages"
    made = await sentence(server, protocol, fields)
    assert made.startswith(f"{name}[{at}] is about a tool call, which this model's chat template")


async def test_a_stream_that_is_cut_while_it_thinks_ends_well(server: Any, protocol: Any) -> None:
    server.core.text = THOUGHT.text
    tokens = [*server.core.tokenizer.encode(THOUGHT.text), EOS]
    server.core.tokens = lambda seed, sample: tokens
    answer = await server.post(protocol.path, {**protocol.ask, "stream": True})
    lines = [line for line in answer.text.split("\n") if line.startswith("data: {")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    thought = _ENDS[protocol](events)
    assert thought
    assert THOUGHT.reasoning.startswith(thought)
    assert len(thought) < len(THOUGHT.reasoning)


def _end_of_chat(events: list[Any]) -> str:
    deltas = [each["choices"][0]["delta"] for each in events]
    assert not any(delta.get("content") for delta in deltas)
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    return "".join(delta.get("reasoning_content") or "" for delta in deltas)


def _end_of_response(events: list[Any]) -> str:
    assert events[-1]["type"] == "response.incomplete"
    [item] = events[-1]["response"]["output"]
    assert (item["type"], item["status"]) == ("reasoning", "incomplete")
    return str(item["content"][0]["text"])


def _end_of_message(events: list[Any]) -> str:
    names = [each["type"] for each in events]
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"
    return "".join(each["delta"]["thinking"] for each in events[3:-3])


_ENDS: dict[Any, Callable[[list[Any]], str]] = {
    Chats: _end_of_chat,
    Responses: _end_of_response,
    Messages: _end_of_message,
}
