"""The engine contract for responses: a stream that broke at any event is gone on with exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.answer_texts import REASONING_ANSWERS, TOOL_ANSWERS, Answer
from support.engine_server import EOS

PATH = "/v1/responses"
SECRET = {"x-kvasir-fleet-secret": "fleet"}
TOOL = {"type": "function", "name": "get_weather"}
CALLS = next(each for each in TOOL_ANSWERS if each.format == "hermes" and len(each.calls) > 1)
THOUGHT = next(each for each in REASONING_ANSWERS if each.reasoning and each.content)
BODIES: dict[str, tuple[Answer | None, dict[str, Any]]] = {
    "plain": (None, {"input": "hi", "max_output_tokens": 20}),
    "to the end": (None, {"input": "hi"}),
    "calls": (CALLS, {"input": "hi", "tools": [TOOL]}),
    "a cut call": (CALLS, {"input": "hi", "tools": [TOOL], "max_output_tokens": 60}),
    "reasoning": (THOUGHT, {"input": "hi"}),
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


def resume_fields(events: list[bytes]) -> dict[str, Any]:
    comments, data = taken_apart(events)
    deltas = [each["delta"] for each in data if "delta" in each]
    return {
        "output_token_ids": [token for each in comments for token in each.get("t", ())],
        "seed": comments[0]["s"],
        "cached_tokens": comments[0]["c"],
        "sent_chars": sum(map(len, deltas)),
        "sent_events": len(data),
        "sent_steps": len(data) - len(deltas),
        "id": data[0]["response"]["id"],
        "created": data[0]["response"]["created_at"],
    }


def joined(events: list[bytes]) -> list[dict[str, Any]]:
    """The events with neighbouring deltas of a text as one, without numbers and times."""
    _, data = taken_apart(events)
    assert [each.pop("sequence_number") for each in data] == list(range(len(data)))
    made: list[dict[str, Any]] = []
    for each in data:
        each.get("response", {}).pop("completed_at", None)
        if "delta" in each and made and made[-1]["type"] == each["type"]:
            made[-1]["delta"] += each["delta"]
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


async def test_every_token_and_the_usage_are_told(start: Any) -> None:
    server = await start(CALLS, fleet_secret="fleet")
    comments, data = taken_apart(await read(server, BODIES["calls"][1]))
    ids = [token for each in comments for token in each.get("t", ())]
    assert ids == [*server.core.tokenizer.encode(CALLS.text), EOS]
    assert comments[0]["s"] == 0
    assert comments[-1]["u"]["completion_tokens"] == len(ids)
    assert data[-1]["type"] == "response.completed"


async def test_a_unary_resume_is_the_whole_response(start: Any) -> None:
    server = await start(fleet_secret="fleet")
    ids = server.core.tokenizer.encode("The quick")
    fields = {"output_token_ids": ids, "seed": 0, "id": "resp_x", "created": 9}
    body = {"input": "hi", "max_output_tokens": 12, "resume": fields}
    made = (await server.post(PATH, body)).json()
    assert made["output"][0]["content"][0]["text"] == "The quick br"
    assert (made["id"], made["created_at"]) == ("resp_x", 9)


async def test_at_the_drain_deadline_a_stream_is_handed_over(start: Any) -> None:
    for headers, end in ((SECRET, b"event: handover\n"), ({}, b"event: response.failed\n")):
        server = await start(fleet_secret="fleet")
        server.core.step_seconds = 0.01
        body = {"input": "hi", "stream": True}
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
    body = {"input": "hi", "stream": True}
    async with server.http.stream("POST", PATH, json=body, headers=SECRET) as answer:
        text = b""
        async for part in answer.aiter_bytes():
            server.core.alive = False
            text += part
    last = text.rstrip().split(b"\n\n")[-1].split(b"\n")
    assert last[0].startswith(b': kvasir {"u"')
    assert json.loads(last[1].removeprefix(b"data: "))["error"]["code"] == "engine_dead"
