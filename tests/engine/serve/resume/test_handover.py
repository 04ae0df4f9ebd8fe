"""What runs at an engine's drain deadline goes on in another engine."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import httpx

PATH = "/v1/chat/completions"
LONG = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Count to 300"}],
    "temperature": 0,
    "max_tokens": 600,
    "ignore_eos": True,
    "stop": ["999"],
}
STREAMED = {**LONG, "stream_options": {"include_usage": True}}


async def until_draining(engine: Any) -> None:
    """Ask the engine to stop once its three requests run."""
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False, verify=False) as http:
        async with asyncio.timeout(30):
            while (await http.get("/load")).json()["running"] < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    engine.process.send_signal(signal.SIGTERM)


async def test_handover_at_the_drain_deadline(
    start_tiny: Any, pair: Any, caller: Any, client_view: Any, differences: Any
) -> None:
    leaving, other = start_tiny("--drain-timeout", "0.1"), pair[1]
    async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as plain:
        streamed, unary, of_a_client, _ = await asyncio.gather(
            caller.events(leaving, PATH, STREAMED),
            caller.http.post(leaving.url + PATH, json=LONG),
            plain.post(leaving.url + PATH, json={**LONG, "stream": True}),
            until_draining(leaving),
        )
    assert leaving.process.wait(timeout=30) == 0

    *received, last = streamed
    assert last.name == "handover"
    fields = caller.resume_fields(received, 0)
    [state] = last.data["choices"]
    assert state == {"i": 0, "t": fields["output_token_ids"], "finish_reason": None}
    assert 0 < len(state["t"]) < 600
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
    assert json.loads(rest.headers["x-kvasir-usage"])["completion_tokens"] == 600


async def test_only_the_fleet_secret_opens_the_contract(pair: Any, caller: Any) -> None:
    body = {**LONG, "max_tokens": 4, "seed": 12}
    mine = await caller.http.post(pair[0].url + PATH, json=body)
    assert mine.headers["x-kvasir-seed"] == "12"
    assert json.loads(mine.headers["x-kvasir-usage"]) == mine.json()["usage"]
    async with httpx.AsyncClient(base_url=pair[0].url, trust_env=False, verify=False) as http:
        for headers in ({}, {"x-kvasir-fleet-secret": "another"}):
            unary = await http.post(PATH, json=body, headers=headers)
            assert not [name for name in unary.headers if "kvasir" in name]
            stream = await http.post(PATH, json={**body, "stream": True}, headers=headers)
            assert "kvasir" not in stream.text
