from __future__ import annotations

import asyncio
import json

import httpx
import pytest

BODY = {"prompt": "abc", "max_tokens": 100, "stream": True}


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_while_the_core_loads_the_server_is_healthy_but_not_ready(start_server):
    server = await start_server(ready=False)
    assert (await server.get("/health")).status_code == 200
    answer = await server.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"status": "starting"})
    answer = await server.post("/v1/completions", {"prompt": "a"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == "starting"
    assert (await server.get("/v1/models")).json()["data"][0]["max_model_len"] is None

    server.core.become_ready()
    await until(lambda: server.lifecycle.ready)
    answer = await server.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    assert (await server.post("/v1/completions", {"prompt": "a"})).status_code == 200


@pytest.mark.parametrize("age", ["step_age", "turn_age"])
async def test_a_core_that_is_stuck_makes_the_server_unhealthy(start_server, age):
    server = await start_server(stuck_after=60.0)
    setattr(server.core, age, 59.0)
    answer = await server.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "step_age_seconds": 59.0})
    setattr(server.core, age, 61.0)
    answer = await server.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "stuck")


async def test_a_dead_core_is_told_everywhere(server):
    server.core.step_seconds = 0.01
    stream = asyncio.create_task(server.post("/v1/completions", BODY))
    unary = asyncio.create_task(server.post("/v1/completions", {**BODY, "stream": False}))
    await until(lambda: len(server.core.requests) == 2)
    await asyncio.sleep(0.05)
    server.core.alive = False
    assert json.loads((await stream).text.split("data: ")[-1])["error"]["code"] == "engine_dead"
    assert (await unary).status_code == 503
    assert (await server.get("/health")).json() == {"status": "dead"}
    answer = await server.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"status": "dead"})
    assert (await server.post("/v1/completions", BODY)).status_code == 503


async def test_a_drain_lets_running_requests_finish(server):
    server.core.step_seconds = 0.005
    running = asyncio.create_task(server.post("/v1/completions", BODY))
    await until(lambda: server.core.requests)
    drained = asyncio.create_task(server.lifecycle.drain(20.0))
    await until(lambda: server.lifecycle.draining)
    assert (await server.get("/ready")).json() == {"status": "draining"}
    refused = await server.post("/v1/completions", BODY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    await drained
    assert "[DONE]" in (await running).text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
async def test_a_client_that_leaves_is_aborted_at_once(server, stream, prompt):
    server.core.step_seconds = 0.001
    body = {"prompt": prompt, "max_tokens": 400, "ignore_eos": True, "stream": stream}
    async with httpx.AsyncClient(base_url=server.url, verify=False) as client:
        request = asyncio.create_task(client.post("/v1/completions", json=body))
        count = 1 if prompt == "a" else 2
        await until(lambda: len(server.core.requests) == count)
        await asyncio.sleep(0.02)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    await until(lambda: len(server.core.closed) == count)
    assert all(still_ran for _, still_ran in server.core.closed)
    async with asyncio.timeout(1):
        await server.lifecycle.drain(1.0)


async def test_a_client_that_leaves_while_the_core_is_silent_is_aborted(server):
    server.core.paused.clear()
    async with httpx.AsyncClient(base_url=server.url, verify=False) as client:
        request = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await until(lambda: server.core.requests)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    await until(lambda: server.core.closed)


async def test_a_slow_reader_holds_up_nobody(server):
    body = {**BODY, "max_tokens": 500, "ignore_eos": True}
    async with server.http.stream("POST", "/v1/completions", json=body) as slow:
        answer = await server.post("/v1/completions", {"prompt": "b", "max_tokens": 5})
        assert answer.json()["usage"]["completion_tokens"] == 5
        text = "".join([part async for part in slow.aiter_text()])
    assert text.count("data: ") >= 3


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


@pytest.mark.parametrize("sent", ["my-id.7", "a/b:c_d"])
async def test_a_request_id_is_echoed_and_used(server, sent):
    answer = await server.post(
        "/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"x-request-id": sent}
    )
    assert answer.headers["x-request-id"] == sent
    assert answer.json()["id"] == f"cmpl-{sent}"
    assert server.core.requests[0].request_id == sent


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, "a\u00e9", 'a"b'])
async def test_a_harmful_request_id_is_replaced(server, sent):
    made = {
        (await server.get("/health", headers={"x-request-id": sent.encode()})).headers[
            "x-request-id"
        ]
        for _ in range(2)
    }
    assert len(made) == 2
    assert sent not in made


async def test_keys_guard_all_but_the_probes(start_server):
    server = await start_server(api_keys=("one", "two"), fleet_secret="fleet")
    for path in ("/health", "/ready", "/version", "/metrics"):
        assert (await server.get(path)).status_code == 200
    for path in ("/v1/models", "/load", "/nope"):
        answer = await server.get(path)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    for value in ("Bearer one", "bearer two", "Bearer  two"):
        answer = await server.get("/v1/models", headers={"authorization": value})
        assert answer.status_code == 200
    for value in ("Bearer three", "Basic one", "one", "Bearer", "Bearer on"):
        answer = await server.get("/v1/models", headers={"authorization": value})
        assert answer.status_code == 401
    fleet = {"x-kvasir-fleet-secret": "fleet"}
    assert (await server.get("/v1/models", headers=fleet)).status_code == 200


async def test_settings_do_not_show_their_secrets(start_server):
    server = await start_server(api_keys=("hidden-key",), fleet_secret="hidden-secret")
    assert "hidden" not in repr(server.app.state.server.settings)


async def test_tokens_and_back(server):
    tokenizer = server.core.tokenizer
    answer = await server.post("/tokenize", {"prompt": "hé", "return_token_strs": True})
    assert answer.json() == {
        "count": 3,
        "max_model_len": 512,
        "tokens": tokenizer.encode("hé"),
        "token_strs": ["h", "\ufffd", "\ufffd"],
    }
    chat = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True}
    tokens = (await server.post("/tokenize", chat)).json()["tokens"]
    assert tokenizer.decode(tokens) == "<user>hi<assistant>"
    assert (await server.post("/detokenize", {"tokens": tokens})).json() == {
        "prompt": "<user>hi<assistant>"
    }
    assert (await server.post("/tokenize", {})).status_code == 400
    assert (await server.post("/detokenize", {"tokens": [999]})).status_code == 400
    assert (await server.post("/detokenize", {})).json()["error"]["param"] == "tokens"


async def test_metrics_count_what_clients_saw(server):
    await server.post("/v1/completions", {"prompt": "abc", "max_tokens": 5, "n": 2})
    await server.post("/v1/completions", {"prompt": "abcd", "max_tokens": 90, "stop": "quick"})
    await server.get("/nope")
    text = (await server.get("/metrics")).text
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)

    def of(name: str, labels: str = "") -> float:
        return values[f'kvasir_{name}{{engine="0",{labels}model_name="tiny"}}']

    stopped = len("The quick")
    assert of("prompt_tokens_total") == 7
    assert of("generation_tokens_total") == 10 + stopped
    assert of("request_success_total", 'finished_reason="length",') == 2
    assert of("request_success_total", 'finished_reason="stop",') == 1
    assert of("time_to_first_token_seconds_count") == 2
    assert of("inter_token_latency_seconds_count") == 4 + stopped - 1
    assert of("e2e_request_latency_seconds_count") == 2
    assert of("request_time_per_output_token_seconds_count") == 2
    assert of("request_prompt_tokens_sum") == 7
    assert of("request_generation_tokens_sum") == 10 + stopped
    assert of("request_params_n_sum") == 3
    assert of("request_params_max_tokens_sum") == 95
    assert 'handler="other"' in text
    assert "/nope" not in text


async def test_a_client_that_leaves_within_its_body_is_counted_as_gone(server):
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n"
    writer.write(head + b'{"prompt":')
    await writer.drain()
    writer.close()
    text = ""
    async with asyncio.timeout(5):
        while 'handler="/v1/completions"' not in text:
            text = (await server.get("/metrics")).text
    assert 'status="499"' in text
    assert 'status="400"' not in text


async def test_the_metrics_prefix_is_a_setting(start_server):
    server = await start_server(metrics_prefix="vllm:")
    text = (await server.get("/metrics")).text
    assert "vllm:time_to_first_token_seconds_bucket" in text
