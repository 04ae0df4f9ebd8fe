from __future__ import annotations

import asyncio
import json
from collections import Counter

import httpx
import pytest
from support.loop_clock import LoopClock

from kvasir_engine.core.client import RequestRejectedError
from kvasir_engine.server import long_json
from kvasir_engine.server.generation.delta_portions import PORTION_VALUES
from kvasir_engine.server.openai import logprob_format
from kvasir_engine.server.openai.logprob_format import LogprobFormat


def error_of(answer: httpx.Response, status: int) -> dict:
    assert answer.status_code == status, answer.text
    [(key, error)] = answer.json().items()
    assert key == "error"
    assert set(error) >= {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    return error


@pytest.mark.parametrize(
    ("rejection", "status", "retry_after"),
    [
        (RequestRejectedError("The queue is full.", status=429, retry_after=7), 429, "7"),
        (RequestRejectedError("Draining.", status=503), 503, "1"),
        (RequestRejectedError("Too wide.", status=400, param="n"), 400, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_cores_refusal_comes_before_any_head(
    server, rejection, status, retry_after, stream
):
    server.core.reject = rejection
    answer = await server.post("/v1/completions", {"prompt": "x", "stream": stream})
    error = error_of(answer, status)
    assert error["message"] == str(rejection)
    assert error["param"] == rejection.param
    assert answer.headers.get("retry-after") == retry_after


async def test_of_several_prompts_all_are_taken_back_when_one_is_refused(server):
    submit = server.core.submit

    async def second_is_refused(request):
        if server.core.requests:
            raise RequestRejectedError("The queue is full.", status=429)
        return await submit(request)

    server.core.submit = second_is_refused
    error_of(await server.post("/v1/completions", {"prompt": ["a", "b"]}), 429)
    assert [still_ran for _, still_ran in server.core.closed] == [True]


async def test_an_error_of_one_request_leaves_the_others_alone(server):
    server.core.error = "This request ran into a wall."
    error = error_of(await server.post("/v1/completions", {"prompt": "x"}), 500)
    assert error["message"] == "This request ran into a wall."
    answer = await server.post("/v1/completions", {"prompt": "x", "stream": True})
    assert answer.status_code == 200
    assert "ran into a wall" in answer.text
    assert "[DONE]" not in answer.text
    server.core.error = None
    assert (await server.post("/v1/completions", {"prompt": "x"})).status_code == 200


BODY = {"prompt": "abc", "max_tokens": 100, "stream": True}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
async def test_a_client_that_leaves_is_aborted_at_once(server, stream, prompt, until):
    server.core.step_seconds = 0.001
    body = {"prompt": prompt, "max_tokens": 400, "ignore_eos": True, "stream": stream}
    async with httpx.AsyncClient(base_url=server.url, verify=False, timeout=60) as client:
        request = asyncio.create_task(client.post("/v1/completions", json=body))
        count = 1 if prompt == "a" else 2
        await until(lambda: len(server.core.requests) == count)
        await asyncio.sleep(0.02)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    await until(lambda: len(server.core.closed) == count)
    assert all(still_ran for _, still_ran in server.core.closed)
    async with asyncio.timeout(30):
        await server.lifecycle.drain(600)


async def test_a_client_that_leaves_while_the_core_is_silent_is_aborted(server, until):
    server.core.paused.clear()
    async with httpx.AsyncClient(base_url=server.url, verify=False, timeout=60) as client:
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


async def test_what_waited_for_a_slow_reader_is_rendered_in_turns(server, monkeypatch):
    clock, rendered_at, render = LoopClock(), [], LogprobFormat._top

    def noted(self, entry):
        rendered_at.append(clock.turn)
        return render(self, entry)

    monkeypatch.setattr(LogprobFormat, "_top", noted)
    monkeypatch.setattr(server.app.state.server.turns, "_seconds", 0.0)
    server.core.tokens_a_batch = 400
    body = {**BODY, "max_tokens": 400, "ignore_eos": True, "logprobs": 2, "return_token_ids": True}
    answer = await server.post("/v1/completions", body)
    *events, done = [
        line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data")
    ]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    assert done == "[DONE]"
    assert sum(len(choice["token_ids"]) for choice in choices) == 400
    assert len(rendered_at) == 400
    assert max(Counter(rendered_at).values()) <= 2 * (PORTION_VALUES // 4)


async def test_an_echoed_prompt_of_a_stream_is_rendered_in_turns(server, monkeypatch):
    clock, rendered_at, render = LoopClock(), [], LogprobFormat._top

    def noted(self, entry):
        rendered_at.append(clock.turn)
        return render(self, entry)

    monkeypatch.setattr(long_json, "PART_BYTES", 100)
    body = {"prompt": "ab" * 30, "max_tokens": 3, "n": 2, "echo": True, "logprobs": 2}
    whole = (await server.post("/v1/completions", body)).json()["choices"]
    monkeypatch.setattr(LogprobFormat, "_top", noted)
    monkeypatch.setattr(server.app.state.server.turns, "_seconds", 0.0)
    answer = await server.post("/v1/completions", {**body, "stream": True})
    tops, texts = {0: [], 1: []}, {0: "", 1: ""}
    for line in answer.text.splitlines():
        if line.startswith("data: {"):
            [choice] = json.loads(line.removeprefix("data: "))["choices"]
            tops[choice["index"]] += choice["logprobs"]["top_logprobs"]
            texts[choice["index"]] += choice["text"]
    assert tops == {each["index"]: each["logprobs"]["top_logprobs"] for each in whole}
    assert texts == {each["index"]: each["text"] for each in whole}
    assert len(rendered_at) == 2 * (59 + 3)
    assert max(Counter(rendered_at).values()) <= 4


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [
        ("/v1/completions", {"prompt": "a", "logprobs": 2}, "_top"),
        ("/v1/completions", {"prompt": "a" * 40, "prompt_logprobs": 2, "max_tokens": 1}, "_by_id"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 2},
            "_chat_entry",
        ),
    ],
)
async def test_others_have_turns_while_log_probabilities_are_rendered(
    server, monkeypatch, path, body, method
):
    clock, rendered_at, render = LoopClock(), [], getattr(LogprobFormat, method)

    def noted(self, entry):
        rendered_at.append(clock.turn)
        return render(self, entry)

    monkeypatch.setattr(LogprobFormat, method, noted)
    monkeypatch.setattr(server.app.state.server.turns, "_seconds", 0.0)
    answer = await server.post(path, {"max_tokens": 20, "n": 2, "ignore_eos": True, **body})
    assert answer.status_code == 200
    assert len(answer.json()["choices"]) == 2
    assert len(rendered_at) >= 40
    assert max(Counter(rendered_at).values()) <= 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "read", "method"),
    [
        (
            "/v1/completions",
            {"prompt": "a", "logprobs": 9},
            lambda choice: choice["logprobs"]["top_logprobs"],
            "_text",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 9},
            lambda choice: [each["top_logprobs"] for each in choice["logprobs"]["content"]],
            "_chat_token",
        ),
    ],
)
async def test_many_log_probabilities_of_a_token_are_rendered_in_turns(
    server, monkeypatch, path, body, read, method, stream
):
    monkeypatch.setattr(long_json, "PART_BYTES", 100)
    body = {**body, "max_tokens": 3, "ignore_eos": True}
    whole = read((await server.post(path, body)).json()["choices"][0])
    clock, rendered_at, render = LoopClock(), [], getattr(LogprobFormat, method)

    def noted(self, *arguments):
        rendered_at.append(clock.turn)
        return render(self, *arguments)

    monkeypatch.setattr(LogprobFormat, method, noted)
    monkeypatch.setattr(logprob_format, "LONG_TOP", 1)
    monkeypatch.setattr(server.app.state.server.turns, "_seconds", 0.0)
    answer = await server.post(path, {**body, "stream": stream})
    if stream:
        *events, done = [line[6:] for line in answer.text.splitlines() if line.startswith("data")]
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        made = [each for choice in choices if choice["logprobs"] for each in read(choice)]
        assert done == "[DONE]"
    else:
        made = read(answer.json()["choices"][0])
    assert made == whole
    assert len(whole[0]) >= 9
    assert len(rendered_at) >= 3 * 9
    assert max(Counter(rendered_at).values()) <= 4


async def test_a_long_answer_comes_in_parts_with_its_length(server, monkeypatch):
    monkeypatch.setattr(long_json, "PART_BYTES", 100)
    body = {"prompt": "a", "max_tokens": 50, "logprobs": 2, "ignore_eos": True}
    answer = await server.post("/v1/completions", body)
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert len(answer.json()["choices"][0]["logprobs"]["tokens"]) == 50
