"""What runs at an engine's drain deadline goes on in another engine."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import httpx
import pytest

PATH = "/v1/chat/completions"
LONG = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Count to 300"}],
    "temperature": 0,
    "max_tokens": 400,
    "ignore_eos": True,
    "stop": ["999"],
}
STREAMED = {**LONG, "stream_options": {"include_usage": True}}


async def read_and_stop_the_engine(caller: Any, engine: Any) -> list[Any]:
    """A stream's events; the engine is told to end in the midst of them and two other requests."""
    events: list[Any] = []
    told = False
    async for event in caller.stream(engine, PATH, STREAMED):
        events.append(event)
        if not told and len(events) % 10 == 0:
            load = (await caller.http.get(engine.url + "/load")).json()
            if told := load["running"] == 3:
                engine.process.send_signal(signal.SIGTERM)
    return events


@pytest.mark.slow
async def test_handover_at_the_drain_deadline(
    start_tiny: Any, pair: Any, caller: Any, client_view: Any, differences: Any
) -> None:
    leaving, other = start_tiny("--drain-timeout", "0.1"), pair[1]
    async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as plain:
        streamed, unary, of_a_client = await asyncio.gather(
            read_and_stop_the_engine(caller, leaving),
            caller.http.post(leaving.url + PATH, json=LONG),
            plain.post(leaving.url + PATH, json={**LONG, "stream": True}),
        )
    assert leaving.process.wait(timeout=30) == 0

    *received, last = streamed
    assert last.name == "handover"
    fields = caller.resume_fields(received, 0)
    [state] = last.data["choices"]
    assert state == {"i": 0, "t": fields["output_token_ids"], "finish_reason": None}
    assert 0 < len(state["t"]) < 400
    assert last.comment["u"] == last.data["usage"]
    joined = await caller.resumed(other, PATH, STREAMED, received)
    whole = client_view(PATH, await caller.events(other, PATH, STREAMED))
    assert differences(client_view(PATH, joined), whole) == []

    error = json.loads(of_a_client.text.split("\n\n")[-2].removeprefix("data: "))["error"]
    assert error["code"] == "handover"
    assert "kvasir" not in of_a_client.text

    assert unary.status_code == 503
    handover = unary.json()["error"]["handover"]
    resume = {"output_token_ids": handover["choices"][0]["t"], "seed": handover["seed"]}
    rest = await caller.http.post(other.url + PATH, json={**LONG, "resume": resume})
    [choice] = rest.json()["choices"]
    assert choice["message"]["content"] == whole["choices"][0]["message"]["content"]
    assert json.loads(rest.headers["x-kvasir-usage"])["completion_tokens"] == 400


@pytest.mark.slow
async def test_only_the_fleet_secret_opens_the_contract(pair: Any, caller: Any) -> None:
    body = {**LONG, "max_tokens": 4, "seed": 12}
    mine = await caller.http.post(pair[0].url + PATH, json=body)
    assert mine.headers["x-kvasir-seed"] == "12"
    assert json.loads(mine.headers["x-kvasir-usage"]) == mine.json()["usage"]
    url = pair[0].url
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as http:
        for headers in ({}, {"x-kvasir-fleet-secret": "another"}):
            unary = await http.post(PATH, json=body, headers=headers)
            assert not [name for name in unary.headers if "kvasir" in name]
            stream = await http.post(PATH, json={**body, "stream": True}, headers=headers)
            assert "kvasir" not in stream.text
