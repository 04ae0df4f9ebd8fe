"""The engine contract for messages: a stream that broke at any event is gone on with exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.answer_texts import HARMONY_ANSWERS, REASONING_ANSWERS, TOOL_ANSWERS, Answer
from support.engine_server import EOS

PATH = "/v1/messages"
SECRET = {"x-kvasir-fleet-secret": "fleet"}
TOOL = {"name": "get_weather", "input_schema": {"type": "object"}}
ASK: dict[str, Any] = {"max_tokens": 400, "messages": [{"role": "user", "content": "hi"}]}
CALLS = next(each for each in TOOL_ANSWERS if each.format == "hermes" and len(each.calls) > 1)
THOUGHT = next(each for each in REASONING_ANSWERS if each.reasoning and each.content)
HARMONY = next(each for each in HARMONY_ANSWERS if each.reasoning and each.calls)
BODIES: dict[str, tuple[Answer | None, dict[str, Any]]] = {
    "plain": (None, {**ASK, "max_tokens": 20}),
    "to a stop sequence": (None, {**ASK, "stop_sequences": ["brown"]}),
    "to the end": (None, ASK),
    "calls": (CALLS, {**ASK, "tools": [TOOL]}),
    "a cut call": (CALLS, {**ASK, "tools": [TOOL], "max_tokens": 60}),
    "thinking": (THOUGHT, ASK),
    "thinking that is left out": (THOUGHT, {**ASK, "thinking": {"type": "disabled"}}),
    "thinking and a call": (HARMONY, {**ASK, "tools": [TOOL]}),
}


async def read(server: Any, body: dict[str, Any]) -> list[bytes]:
    answer = await server.post(PATH, {**body, "stream": True}, headers=SECRET)
    assert answer.status_code == 200, answer.text
    return [event + b"\n\n" for event in answer.content.split(b"\n\n")[:-1]]


def taken_apart(events: list[bytes]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The comments and the data."""
    lines = b"".join(events).decode().split("\n")
    told = [json.loads(line[9:]) for line in lines if line.startswith(": kvasir ")]
    return told, [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def text_of(event: dict[str, Any]) -> str | None:
    """The text that an event adds; None for one that adds none."""
    if event["type"] != "content_block_delta":
        return None
    [text] = (value for name, value in event["delta"].items() if name != "type")
    return str(text)


def resume_fields(events: list[bytes]) -> dict[str, Any]:
    comments, data = taken_apart(events)
    texts = [text for each in data if (text := text_of(each)) is not None]
    return {
        "output_token_ids": [token for each in comments for token in each.get("t", ())],
        "seed": comments[0]["s"],
        "cached_tokens": comments[0]["c"],
        "sent_chars": sum(map(len, texts)),
        "sent_events": len(data),
        "sent_steps": len(data) - len(texts),
        "id": data[0]["message"]["id"],
    }


def joined(events: list[bytes]) -> list[dict[str, Any]]:
    """The events with neighbouring deltas of a block as one."""
    made: list[dict[str, Any]] = []
    for each in taken_apart(events)[1]:
        last = made[-1] if made else {"type": ""}
        if text_of(each) is not None and last["type"] == each["type"]:
            assert last["index"] == each["index"]
            for name, text in each["delta"].items():
                last["delta"][name] = text if name == "type" else last["delta"][name] + text
        else:
            made.append(each)
    return made


@pytest.mark.parametrize("tokens_a_batch", [1, 5])
@pytest.mark.parametrize("name", BODIES)
async def test_a_stream_broken_at_any_event_joins_to_the_unbroken_one(
    start: Any, name: str, tokens_a_batch: int
) -> None:
    answer, body = BODIES[name]
    server = await start(answer, fleet_secret="fleet")
    server.core.tokens_a_batch = tokens_a_batch
    events = await read(server, body)
    unbroken = joined(events)
    other = await start(answer, fleet_secret="fleet")
    for broken_at in range(1, len(events)):
        received = events[:broken_at]
        rest = await read(other, {**body, "resume": resume_fields(received)})
        assert joined(received + rest) == unbroken, broken_at


async def test_a_stream_begins_alike_whatever_the_cuts(start: Any) -> None:
    server = await start(THOUGHT, fleet_secret="fleet")
    made = []
    for server.core.tokens_a_batch in (1, 5):
        made.append(joined(await read(server, ASK)))
        del made[-1][0]["message"]["id"]
    assert made[0] == made[1]
    assert made[0][0]["message"]["usage"]["output_tokens"] == 0


async def test_one_that_broke_twice_is_gone_on_with(start: Any) -> None:
    answer, body = BODIES["thinking and a call"]
    server = await start(answer, fleet_secret="fleet")
    events = await read(server, body)
    received = events[:6]
    second = await read(server, {**body, "resume": resume_fields(received)})
    received += second[:9]
    received += await read(server, {**body, "resume": resume_fields(received)})
    assert joined(received) == joined(events)


async def test_every_token_and_the_usage_are_told(start: Any) -> None:
    server = await start(CALLS, fleet_secret="fleet")
    comments, data = taken_apart(await read(server, BODIES["calls"][1]))
    ids = [token for each in comments for token in each.get("t", ())]
    assert ids == [*server.core.tokenizer.encode(CALLS.text), EOS]
    assert comments[0]["s"] == 0
    assert comments[-1]["u"]["completion_tokens"] == len(ids)
    assert data[-1] == {"type": "message_stop"}


@pytest.mark.parametrize("answer", [None, THOUGHT])
async def test_a_unary_resume_is_the_whole_message(start: Any, answer: Answer | None) -> None:
    server = await start(answer, fleet_secret="fleet")
    whole = (await server.post(PATH, ASK)).json()
    ids = server.core.tokenizer.encode(server.core.text)[:9]
    resume = {"output_token_ids": ids, "seed": 0, "id": whole["id"]}
    made = (await server.post(PATH, {**ASK, "resume": resume})).json()
    assert made == whole


async def test_a_large_body_is_resumed_by_a_body_worker(start_server: Any) -> None:
    server = await start_server(fleet_secret="fleet")
    body = {**BODIES["plain"][1], "metadata": {"user_id": "x" * 200_000}}
    events = await read(server, body)
    received = events[:6]
    rest = await read(server, {**body, "resume": resume_fields(received)})
    assert joined(received + rest) == joined(events)


async def test_at_the_drain_deadline_a_stream_is_handed_over(start: Any) -> None:
    for headers, end in ((SECRET, b"event: handover\n"), ({}, b"event: error\n")):
        server = await start(fleet_secret="fleet")
        server.core.step_seconds = 0.01
        body = {**ASK, "stream": True}
        async with server.http.stream("POST", PATH, json=body, headers=headers) as answer:
            text = b""
            async for part in answer.aiter_bytes():
                if not text:
                    await server.lifecycle.drain(0)
                text += part
        assert end in text[text.rstrip().rindex(b"\n\n") :]


async def test_a_router_hears_of_an_engines_death(start: Any) -> None:
    server = await start(fleet_secret="fleet")
    server.core.step_seconds = 0.01
    body = {**ASK, "stream": True}
    async with server.http.stream("POST", PATH, json=body, headers=SECRET) as answer:
        text = b""
        async for part in answer.aiter_bytes():
            server.core.alive = False
            text += part
    last = text.rstrip().split(b"\n\n")[-1].split(b"\n")
    assert last[0].startswith(b': kvasir {"u"')
    assert json.loads(last[1].removeprefix(b"data: "))["error"]["code"] == "engine_dead"
