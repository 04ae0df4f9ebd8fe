from __future__ import annotations

import asyncio
import json

import pytest

BODY = {"prompt": "abc", "max_tokens": 100, "stream": True}


async def test_while_the_core_loads_the_server_lives_and_can_not_serve(start_server, until):
    server = await start_server(ready=False)
    assert (await server.get("/live")).json()["status"] == "ok"
    answer = await server.get("/health")
    assert (answer.status_code, answer.json()) == (503, {"status": "starting"})
    answer = await server.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"status": "starting"})
    answer = await server.post("/v1/completions", {"prompt": "a"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == "starting"
    for path in ("/v1/models", "/v1/models/tiny", "/openai/v1/models"):
        answer = await server.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "starting")

    server.core.become_ready()
    await until(lambda: server.lifecycle.ready)
    answer = await server.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    assert (await server.get("/health")).status_code == 200
    assert (await server.post("/v1/completions", {"prompt": "a"})).status_code == 200


@pytest.mark.parametrize("age", ["step_age", "turn_age"])
async def test_a_core_that_is_stuck_makes_the_server_unhealthy(start_server, age):
    server = await start_server(stuck_after=60.0)
    setattr(server.core, age, 59.0)
    for path in ("/live", "/health"):
        answer = await server.get(path)
        expected = (200, {"status": "ok", "step_age_seconds": 59.0})
        assert (answer.status_code, answer.json()) == expected
    setattr(server.core, age, 61.0)
    for path in ("/live", "/health"):
        answer = await server.get(path)
        assert (answer.status_code, answer.json()["status"]) == (503, "stuck")


async def test_a_dead_core_is_told_everywhere(server, until):
    server.core.step_seconds = 0.01
    stream = asyncio.create_task(server.post("/v1/completions", BODY))
    unary = asyncio.create_task(server.post("/v1/completions", {**BODY, "stream": False}))
    await until(lambda: len(server.core.requests) == 2)
    await asyncio.sleep(0.05)
    server.core.alive = False
    assert json.loads((await stream).text.split("data: ")[-1])["error"]["code"] == "engine_dead"
    assert (await unary).status_code == 503
    for path in ("/live", "/health"):
        assert (await server.get(path)).json() == {"status": "dead"}
    assert (await server.get("/v1/models")).json()["error"]["code"] == "dead"
    answer = await server.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"status": "dead"})
    assert (await server.post("/v1/completions", BODY)).status_code == 503


async def test_load_and_version_and_models(server):
    load = (await server.get("/load")).json()
    assert load == {
        "running": 0,
        "waiting": 0,
        "inflight_tokens": 0,
        "kv_usage": 0.25,
        "step_age_seconds": 0.0,
        "turn_age_seconds": 0.0,
    }
    assert (await server.get("/version")).json()["version"].count(".") == 2
    models = await server.openai().models.list()
    assert [model.id for model in models.data] == ["tiny", "alias"]
    assert models.data[0].max_model_len == 512
    assert (await server.openai().models.retrieve("alias")).id == "alias"
    assert (await server.get("/v1/models/nope")).status_code == 404


async def test_the_metrics_prefix_is_a_setting(start_server):
    server = await start_server(metrics_prefix="vllm:")
    text = (await server.get("/metrics")).text
    assert "vllm:time_to_first_token_seconds_bucket" in text
