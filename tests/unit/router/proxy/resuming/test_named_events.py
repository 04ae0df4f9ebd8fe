"""Responses and messages whose streams break go on at another replica, event by event."""

import json
from typing import Any

import pytest
from support import broken_messages, broken_responses
from support.broken_messages import message_engine, message_stream
from support.broken_responses import response_engine, response_stream
from support.named_streams import data_of

RESPONSES = (broken_responses.PATH, broken_responses.BODY, response_engine, response_stream)
MESSAGES = (broken_messages.PATH, broken_messages.BODY, message_engine, message_stream)
BREAKS = [
    (protocol, events)
    for protocol in (RESPONSES, MESSAGES)
    for events in range(1, len(protocol[3]({})) + 1)
]


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "events"), BREAKS)
async def test_after_any_event(routed, client, protocol: Any, events: int) -> None:
    path, body, engine, stream = protocol
    router, _, b = await routed(engine(events=events, last=b"event: half an ev"), engine())
    response = await client.post(router.url + path, json=body)
    assert response.status_code == 200
    whole = stream(body)
    assert data_of(response.text) == data_of(b"".join(whole).decode())
    assert "half an ev" not in response.text
    assert "[DONE]" not in response.text
    assert "kvasir" not in response.text
    outcome = "moved" if events < len(whole) else "completed"
    assert await router.metric("stream_migrations_total", outcome=outcome) == 1
    assert len(b.requests) == (outcome == "moved")
    assert await router.metric("stream_transcript_bytes") == 0


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [RESPONSES, MESSAGES])
async def test_a_unary_answer_goes_on_from_a_handover(routed, client, protocol: Any) -> None:
    async def leaving(exchange: Any) -> None:
        state = {"choices": [{"i": 0, "t": [0, 1]}], "seed": 5}
        error = {"message": "ending", "code": "handover", "handover": state}
        await exchange.json(503, {"type": "error", "error": error})

    async def rest(exchange: Any) -> None:
        await exchange.json(200, json.loads(exchange.request.body)["resume"])

    path, body, _, _ = protocol
    router, _, _ = await routed(leaving, rest)
    made = (await client.post(router.url + path, json={**body, "stream": False})).json()
    assert (made["output_token_ids"], made["seed"], made["sent_events"]) == ([0, 1], 5, 0)
