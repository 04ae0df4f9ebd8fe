"""Tools and reasoning in chats: a scripted core says what a model of the family would."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from support.answer_texts import (
    HARMONY_ANSWERS,
    REASONING_ANSWERS,
    TOOL_ANSWERS,
    TOOLS,
    Answer,
)

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"
BOTH = next(answer for answer in TOOL_ANSWERS if answer.content and answer.calls)
PYTHONIC = next(a for a in TOOL_ANSWERS if a.format == "pythonic" and len(a.calls) == 2)
HERMES = next(answer for answer in TOOL_ANSWERS if answer.format == "hermes" and answer.calls)


def body_of(answer: Answer) -> dict[str, Any]:
    body = {**CHAT, "max_tokens": 400, "temperature": 0}
    return body if answer in REASONING_ANSWERS else {**body, "tools": TOOLS}


async def streamed(client: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices that the openai client accumulates."""
    state = ChatCompletionStreamState()
    async for chunk in await client.chat.completions.create(**body, stream=True):
        state.handle_chunk(chunk)
    return [choice.to_dict() for choice in state.current_completion_snapshot.choices]


def comparable(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice without what differs between two answers, or is missing for null."""
    message = choice["message"]
    calls = [
        {"type": call["type"], "function": {k: call["function"][k] for k in ("name", "arguments")}}
        for call in message.get("tool_calls") or ()
    ]
    fields = ("content", "reasoning", "reasoning_content")
    texts = {name: message.get(name) for name in fields}
    return {
        "index": choice["index"],
        **texts,
        "calls": calls,
        "finish_reason": choice["finish_reason"],
        "logprobs": (choice.get("logprobs") or {}).get("content"),
    }


@pytest.mark.parametrize("answer", [*TOOL_ANSWERS, *HARMONY_ANSWERS, *REASONING_ANSWERS])
async def test_an_answer_is_a_message_of_its_parts(start: Any, answer: Answer) -> None:
    server = await start(answer)
    made = (await server.post(PATH, body_of(answer))).json()
    [choice] = made["choices"]
    message = choice["message"]
    assert message["content"] == (answer.content or None)
    assert (
        message.get("reasoning_content") == message.get("reasoning") == (answer.reasoning or None)
    )
    calls = message.get("tool_calls", [])
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        call[:2] for call in answer.calls
    ]
    ended = bool(answer.calls) and answer.calls[-1][2]
    assert choice["finish_reason"] == ("tool_calls" if ended else "stop")
    assert len({call["id"] for call in calls}) == len(calls)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": True, "top_logprobs": 1},
        {"max_tokens": 40},
        {"max_tokens": 57},
        {"stop": ["Oslo"]},
        {"stop": ["</tool_call>", "weath"]},
        {"n": 2},
        {"parallel_tool_calls": False},
        {"include_reasoning": False},
        {"return_token_ids": True},
    ],
)
@pytest.mark.parametrize("tokens_a_batch", [1, 5])
@pytest.mark.parametrize(
    "answer",
    [HERMES, BOTH, PYTHONIC, HARMONY_ANSWERS[1], REASONING_ANSWERS[0]],
    ids=lambda a: a.format,
)
async def test_a_stream_is_the_unary_answer_in_parts(
    start: Any, answer: Answer, fields: dict[str, Any], tokens_a_batch: int
) -> None:
    server = await start(answer)
    client = server.openai()
    extra = {k: fields[k] for k in ("include_reasoning", "return_token_ids") if k in fields}
    body = {**body_of(answer), **{k: v for k, v in fields.items() if k not in extra}}
    body["extra_body"] = extra
    whole = (await client.chat.completions.create(**body)).to_dict()["choices"]
    server.core.tokens_a_batch = tokens_a_batch
    parts = await streamed(client, body)
    assert [comparable(choice) for choice in parts] == [comparable(choice) for choice in whole]


@pytest.mark.parametrize("fields", [{}, {"include_reasoning": False}, {"n": 2}])
async def test_usage_counts_the_tokens_of_reasoning_shown_or_not(
    start: Any, fields: dict[str, Any]
) -> None:
    server = await start(REASONING_ANSWERS[0])
    client = server.openai()
    body = {**body_of(REASONING_ANSWERS[0]), "extra_body": fields}
    usage = (await client.chat.completions.create(**body)).usage
    counted = usage.completion_tokens_details.reasoning_tokens
    assert len(REASONING_ANSWERS[0].reasoning) <= counted < usage.completion_tokens
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = await client.chat.completions.create(**body, stream=True, stream_options=options)
    told = [chunk.usage.completion_tokens_details.reasoning_tokens async for chunk in stream]
    assert told[-1] == counted


@pytest.mark.parametrize("tokens_a_batch", [1, 3])
@pytest.mark.parametrize(
    "answer",
    [HERMES, BOTH, PYTHONIC, *HARMONY_ANSWERS[1:4], REASONING_ANSWERS[0]],
    ids=lambda a: a.format,
)
async def test_a_stream_broken_at_any_event_goes_on_elsewhere(
    start: Any, answer: Answer, tokens_a_batch: int, router: Any
) -> None:
    server, other = await start(answer), await start(answer)
    server.core.tokens_a_batch = tokens_a_batch
    body = {**body_of(answer), "stream_options": {"include_usage": True}, "logprobs": True}
    events = await router.stream_events(server, PATH, body)
    unbroken = router.merge(events)
    for broken_at in range(1, len(events)):
        received = events[:broken_at]
        resume = router.resume_fields(received, 0)
        rest = await router.stream_events(other, PATH, {**body, "resume": resume})
        assert router.merge([*received, *rest]) == {**unbroken, "done": True}, broken_at


async def test_a_unary_resume_gives_what_the_client_lacks(start: Any) -> None:
    server = await start(BOTH)
    ids = server.core.tokenizer.encode(BOTH.text)
    name = BOTH.calls[0][0]
    for sent in range(len(BOTH.content) + 1 + len(BOTH.calls[0][1])):
        resume = {"output_token_ids": ids[:-8], "seed": 0, "sent_chars": sent, "id": "x"}
        made = (await server.post(PATH, {**body_of(BOTH), "resume": resume})).json()
        message = made["choices"][0]["message"]
        assert (message["content"] or "") == BOTH.content[sent:]
        assert ("name" in message["tool_calls"][0]["function"]) == (sent <= len(BOTH.content))
        assert name in message["tool_calls"][0]["function"].get("name", name)


async def test_calls_have_ids_of_the_answers_own(start: Any) -> None:
    server = await start(BOTH)
    ids = [
        call["id"]
        for _ in range(2)
        for call in (await server.post(PATH, body_of(BOTH))).json()["choices"][0]["message"][
            "tool_calls"
        ]
    ]
    assert len(set(ids)) == 4
    assert all(each.startswith("call_") for each in ids)


async def test_mistrals_ids_are_those_its_template_takes(start: Any) -> None:
    server = await start(next(a for a in TOOL_ANSWERS if a.format == "mistral" and a.calls))
    made = (await server.post(PATH, body_of(BOTH))).json()
    for call in made["choices"][0]["message"]["tool_calls"]:
        assert len(call["id"]) == 9
        assert call["id"].isalnum()


async def test_none_renders_the_tools_and_leaves_calls_alone(start: Any) -> None:
    server = await start(BOTH)
    body = {**body_of(BOTH), "tool_choice": "none"}
    [choice] = (await server.post(PATH, body)).json()["choices"]
    assert choice["message"]["content"] == BOTH.text
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    assert "get_weather" in prompt_of(server)


def prompt_of(server: Any) -> str:
    text: str = server.core.tokenizer.decode(server.core.requests[-1].prompt_token_ids)
    return text


async def test_the_template_gets_tools_calls_and_results(start: Any) -> None:
    server = await start("ok", tools="hermes")
    call = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "1", "content": "4 degrees"},
    ]
    tools = [{"function": {**TOOLS[1]["function"], "strict": False}}]
    body = {**CHAT, "messages": messages, "tools": tools}
    assert (await server.post(PATH, body)).status_code == 200
    shown = json.dumps([{"type": "function", "function": {"name": "now"}}])
    assert prompt_of(server) == (
        f"<tools>{shown}<user>hi<assistant>get_weather=Oslo<tool>4 degrees<assistant>"
    )
    tokenised = await server.post("/tokenize", {"messages": messages, "tools": tools})
    assert tokenised.json()["tokens"] == list(server.core.requests[-1].prompt_token_ids)


async def test_thinking_is_switched_by_the_templates_arguments(start: Any) -> None:
    server = await start("Hm.</think>Hi", reasoning="think")
    kwargs = {"open_thinking": True}
    body = {**CHAT, "reasoning_effort": "low", "chat_template_kwargs": kwargs}
    [choice] = (await server.post(PATH, body)).json()["choices"]
    assert prompt_of(server).endswith("<assistant>~low<think>\n")
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("Hm.", "Hi")
    server.core.text = "Hi"
    body = {**CHAT, "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "x"}}
    [choice] = (await server.post(PATH, {**body, "reasoning_effort": "low"})).json()["choices"]
    assert prompt_of(server).endswith("~x<think></think>")
    assert choice["message"]["content"] == "Hi"
    assert "reasoning" not in choice["message"]


async def test_a_large_body_is_read_by_a_worker_alike(start: Any) -> None:
    server = await start(BOTH, large=True)
    padded = json.dumps({**body_of(BOTH), "padding": "x" * 140_000})
    answer = await server.http.post(PATH, content=padded)
    assert answer.status_code == 200, answer.text
    small = (await server.post(PATH, body_of(BOTH))).json()["choices"]
    assert list(map(comparable, answer.json()["choices"])) == list(map(comparable, small))
    one, other = server.core.requests
    assert one.prompt_token_ids == other.prompt_token_ids
