"""Anthropic's own client against a real server over a scripted core."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from support.answer_texts import HARMONY_ANSWERS, REASONING_ANSWERS, TOOL_ANSWERS, Answer

from kvasir.text.chat_template import ChatTemplate
from kvasir_engine.text.parsing.message_parser import Parsing

WEATHER = {"name": "get_weather", "input_schema": {"type": "object"}}
HI: dict[str, Any] = {"role": "user", "content": "hi"}
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 400, "messages": [HI]}
CALL = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Oslo"}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "rain"}
PATH = "/v1/messages"
HERMES = next(each for each in TOOL_ANSWERS if each.format == "hermes" and each.calls)
HARMONY = next(each for each in HARMONY_ANSWERS if each.reasoning and each.calls)
PYTHONIC = next(each for each in TOOL_ANSWERS if each.format == "pythonic" and len(each.calls) == 1)
THOUGHT = next(each for each in REASONING_ANSWERS if each.reasoning and each.content)


def client_of(server: Any, **options: Any) -> anthropic.AsyncAnthropic:
    given = {"api_key": "x", "max_retries": 0, **options}
    return anthropic.AsyncAnthropic(base_url=server.url, **given)


def prompt_of(server: Any) -> str:
    return str(server.core.tokenizer.decode(server.core.requests[-1].prompt_token_ids))


def blocks_of(message: Any) -> list[dict[str, Any]]:
    """The content without the ids of calls, which differ between two answers."""
    blocks = message.to_dict()["content"]
    return [{**block, "id": None} if "id" in block else block for block in blocks]


async def test_a_unary_message(start: Any) -> None:
    server = await start()
    async with client_of(server) as client:
        message = await client.messages.create(**{**BODY, "max_tokens": 9})
    [block] = message.content
    assert (block.type, block.text) == ("text", "The quick")
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert message.id.startswith("msg_")
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    usage = message.usage
    assert (usage.output_tokens, usage.cache_read_input_tokens) == (9, 4)
    assert usage.input_tokens == len("<user>hi<assistant>") - 4


@pytest.mark.parametrize("tokens_a_batch", [1, 7])
@pytest.mark.parametrize("answer", [None, HERMES, HARMONY, PYTHONIC, THOUGHT])
async def test_a_stream_is_the_unary_message(
    start: Any, answer: Answer | None, tokens_a_batch: int
) -> None:
    server = await start(answer)
    body = BODY if answer is THOUGHT else {**BODY, "tools": [WEATHER]}
    server.core.tokens_a_batch = tokens_a_batch
    async with client_of(server) as client:
        unary = await client.messages.create(**body)
        async with client.messages.stream(**body) as stream:
            streamed = await stream.get_final_message()
    assert blocks_of(streamed) == blocks_of(unary)
    assert streamed.stop_reason == unary.stop_reason
    assert streamed.usage.output_tokens == unary.usage.output_tokens


@pytest.mark.parametrize("answer", [HERMES, HARMONY, PYTHONIC])
async def test_a_call_is_a_tool_use(start: Any, answer: Answer) -> None:
    server = await start(answer)
    async with client_of(server) as client:
        message = await client.messages.create(**BODY, tools=[WEATHER])
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in calls] == [
        (name, json.loads(arguments)) for name, arguments, _ in answer.calls
    ]
    thoughts = [block.thinking for block in message.content if block.type == "thinking"]
    assert thoughts == ([answer.reasoning] if answer.reasoning else [])
    assert message.stop_reason == "tool_use"


async def test_reasoning_is_a_thinking_block(start: Any) -> None:
    server = await start(THOUGHT)
    async with client_of(server) as client:
        message = await client.messages.create(**BODY)
        thought, text = message.content
        assert (thought.type, thought.thinking) == ("thinking", THOUGHT.reasoning)
        assert (text.type, text.text) == ("text", THOUGHT.content)
        silent = await client.messages.create(**BODY, thinking={"type": "disabled"})
    assert [block.type for block in silent.content] == ["text"]
    assert prompt_of(server).endswith("<think></think>")


async def test_the_order_of_events(start: Any) -> None:
    server = await start()
    answer = await server.post(PATH, {**BODY, "max_tokens": 2, "stream": True})
    events = [event.split("\n") for event in answer.text.strip().split("\n\n")]
    names = [name.removeprefix("event: ") for name, _ in events]
    assert names == [
        *("message_start", "content_block_start", "ping"),
        *("content_block_delta", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert [json.loads(data.removeprefix("data: "))["type"] for _, data in events] == names


async def test_a_budget_limits_the_thinking(start: Any) -> None:
    server = await start()
    tokenizer = server.core.tokenizer
    tokenizer.backend.add_special_tokens(["<think>", "</think>"])
    state = server.app.state.server
    parsing = Parsing.choose(tokenizer, None, tools="none", reasoning="think")
    intake = state.intake(None)
    intake.maker = replace(intake.maker, parsing=parsing, vocab_size=1 << 20)
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    async with client_of(server) as client:
        await client.messages.create(**BODY, thinking=thinking)
    assert server.core.requests[-1].thinking.budget == 1024


async def test_a_stop_sequence(start: Any) -> None:
    server = await start()
    async with client_of(server) as client:
        message = await client.messages.create(**BODY, stop_sequences=["fox"])
    assert message.content[0].text == "The quick brown "
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "fox")


async def test_a_conversation_with_all_kinds_of_blocks(start: Any) -> None:
    server = await start()
    messages = [
        HI,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "I look."},
                CALL,
            ],
        },
        {"role": "user", "content": [RESULT, {"type": "text", "text": "So?"}]},
    ]
    system = [{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}]
    body = {**BODY, "messages": messages, "system": system, "tools": [WEATHER]}
    async with client_of(server) as client:
        await client.messages.create(**body)
        del body["max_tokens"]
        counted = await client.messages.count_tokens(**body)
    expected = (
        "<tools>get_weather<system>Be<user>hi<assistant>Hm.I look.get_weather=Oslo<tool>rain"
        "<user>So?<assistant>"
    )
    assert prompt_of(server) == expected
    assert counted.input_tokens == len(expected)


async def test_the_last_message_of_an_assistant_is_continued(start: Any) -> None:
    server = await start()
    messages = [HI, {"role": "assistant", "content": "Well, "}]
    assert (await server.post(PATH, {**BODY, "messages": messages})).status_code == 200
    assert prompt_of(server) == "<user>hi<assistant>Well, "


async def test_a_large_body_is_read_by_a_body_worker(start_server: Any) -> None:
    server = await start_server()
    body = {**BODY, "max_tokens": 9, "metadata": {"user_id": "x" * 200_000}}
    answer = await server.post(PATH, body)
    assert answer.json()["content"] == [{"type": "text", "text": "The quick"}]
    counted = await server.post(f"{PATH}/count_tokens", body)
    assert counted.json() == {"input_tokens": len("<user>hi<assistant>")}


PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


async def test_an_output_format_is_enforced(start: Any) -> None:
    server = await start()
    config = {"format": {"type": "json_schema", "schema": PERSON}, "effort": "max"}
    answer = await server.post(PATH, {**BODY, "output_config": config})
    assert answer.status_code == 200
    form = server.core.requests[-1].params.structured_outputs
    assert json.loads(form) == {"json": PERSON}


async def test_a_template_gets_the_fields_of_a_tool_in_openais_order(start: Any) -> None:
    server = await start()
    server.app.state.server.model.chat_template = ChatTemplate("{{ tools[0].function | list }}")
    tool = {"input_schema": {"type": "object"}, "description": "d", "name": "f"}
    await server.post(PATH, {**BODY, "tools": [tool]})
    assert prompt_of(server) == "['name', 'description', 'parameters']"


async def test_effort_is_the_templates(start: Any) -> None:
    server = await start()
    template = "{{ reasoning_effort | default('-') }}{{ messages[0].content }}"
    server.app.state.server.model.chat_template = ChatTemplate(template)
    for effort, shown in (("low", "low"), ("xhigh", "xhigh"), ("max", "xhigh"), (None, "-")):
        body = {"messages": [HI], "output_config": {"effort": effort}}
        assert (await server.post(PATH, {**BODY, **body})).status_code == 200
        assert prompt_of(server) == f"{shown}hi"
        counted = await server.post(f"{PATH}/count_tokens", body)
        assert counted.json() == {"input_tokens": len(f"{shown}hi")}


@pytest.mark.parametrize("padding", [0, 200_000])
async def test_a_thread_is_refused_so_that_clients_send_the_whole_conversation(
    start_server: Any, padding: int
) -> None:
    """Anthropic's tool runners do when they read this code, also where a body worker refuses."""
    server = await start_server()
    body = {**BODY, "thread": {"type": "create"}, "metadata": {"user_id": "x" * padding}}
    answer = await server.post(PATH, body)
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "type": "invalid_request_error",
        "message": "thread is not supported by this server; leave it out, and send the whole "
        "conversation in messages.",
        "details": {"error_code": "thread_unsupported_request"},
    }


def of_user(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"messages": []}, "messages must not be empty."),
        ({"messages": [5]}, "messages[0].role must be"),
        ({"messages": [{"role": "system", "content": "x"}]}, "goes into system"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content must be a string"),
        (of_user(), "messages[0].content must not be empty."),
        (of_user({"type": "image"}), "messages[0].content[0] is a block of type 'image'"),
        (of_user({"type": []}), "messages[0].content[0] is a block of type []"),
        (
            of_user({"type": "text", "text": 5}),
            "messages[0].content[0].text must be a string, not 5.",
        ),
        (of_user(RESULT), "messages[0].content[0].tool_use_id 'a' is the id of no tool_use"),
        ({"messages": [HI, {"role": "assistant", "content": [CALL]}]}, "ends with a tool_use"),
        ({"max_tokens": None}, "max_tokens must be a whole number, not null."),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "a stop string must have 1 to"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            "thinking.budget_tokens needs a model whose answers begin with reasoning",
        ),
        ({"thinking": {"type": "enabled"}}, 'whole number, with type "enabled"; it is missing.'),
        ({"thinking": {"type": "enabled", "budget_tokens": 1.5}}, "it is 1.5."),
        (
            {"thinking": {"type": "enabled", "budget_tokens": -1}},
            "thinking.budget_tokens must be a number in [0, 2.14748e+09], got -1.",
        ),
        ({"thinking": {"type": "deep"}}, "thinking.type must be"),
        ({"tools": [{"type": "web_search_20250305"}]}, "tools[0] is of type 'web_search_20250305'"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema must be"),
        ({"tools": [5]}, "tools[0] must be an object with a name and an input_schema, not 5."),
        ({"tools": [{**WEATHER, "name": "?"}]}, "tools[0].name must be 1 to 64"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name 'get_weather' stands twice (tools[0]"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "f"}},
            "tool_choice names 'f', which is not in tools",
        ),
        (
            {"tools": [{**WEATHER, "strict": True, "input_schema": {"not": {}}}]},
            "tools[0].input_schema of a strict function cannot be enforced: #/not",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "all"}}, "tool_choice.type must be"),
        ({"output_config": 5}, "output_config must be an object or null, not 5."),
        ({"output_config": {"format": 5}}, 'output_config.format.type must be "json_schema".'),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format must be an"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
            "output_config.format cannot be enforced: #/not",
        ),
        (
            {"output_config": {"effort": "huge"}},
            "output_config.effort must be one of none, minimal",
        ),
        ({"output_config": {"task_budget": {}}}, "output_config.task_budget is not supported"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is not supported"),
    ],
)
async def test_bad_input_gets_one_sentence(start: Any, fields: Any, sentence: str) -> None:
    server = await start()
    answer = await server.post(PATH, {**BODY, **fields})
    made = answer.json()
    assert (answer.status_code, made["type"]) == (400, "error")
    assert made["error"]["type"] == "invalid_request_error"
    assert sentence in made["error"]["message"]


async def test_max_tokens_is_required(start: Any) -> None:
    server = await start()
    answer = await server.post(PATH, {"messages": [HI]})
    assert answer.json()["error"]["message"] == "max_tokens is required."


async def test_errors_are_those_of_the_client(start: Any) -> None:
    server = await start(api_keys=("secret",))
    async with client_of(server) as client:
        with pytest.raises(anthropic.AuthenticationError, match="x-api-key"):
            await client.messages.create(**BODY)
    async with client_of(server, api_key="secret") as client:
        assert (await client.messages.create(**BODY)).content
        with pytest.raises(anthropic.NotFoundError, match="'other' does not exist here"):
            await client.messages.create(**{**BODY, "model": "other"})


async def test_an_error_within_a_stream_is_raised(start: Any) -> None:
    server = await start()
    server.core.error = "A step failed."
    async with client_of(server) as client:
        with pytest.raises(anthropic.APIError, match=r"A step failed\."):
            async with client.messages.stream(**BODY) as stream:
                await stream.get_final_message()


async def test_a_router_is_told_ids_and_usage(start: Any) -> None:
    server = await start(fleet_secret="fleet")
    answer = await server.post(
        PATH, {**BODY, "max_tokens": 2, "stream": True}, headers={"x-kvasir-fleet-secret": "fleet"}
    )
    comments = [
        json.loads(line.removeprefix(": kvasir "))
        for line in answer.text.split("\n")
        if line.startswith(": kvasir ")
    ]
    assert comments[0]["s"] == 0
    assert server.core.tokenizer.decode([t for each in comments for t in each.get("t", ())]) == "Th"
    assert comments[-1]["u"]["completion_tokens"] == 2
    assert answer.text.rstrip().endswith('data: {"type":"message_stop"}')
