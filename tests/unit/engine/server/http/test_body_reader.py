"""Large bodies get the answers that small ones get; padding makes a body large."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from typing import Any

import pytest

from kvasir_engine.server.large_bodies.shared_body import LARGE_BODY_BYTES
from kvasir_engine.server.loop_turns import MAX_BODIES
from kvasir_engine.server.reports import report_backlog

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
INFER = {
    "id": "mine",
    "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hi"]}],
}
COMPLETIONS, INFERENCES = "/v1/completions", "/v2/models/tiny/infer"


def padded(body: Any) -> bytes:
    return json.dumps(body).encode().ljust(LARGE_BODY_BYTES + 1)


def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("id", "created")}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "a", "max_tokens": 5, "echo": True, "logprobs": 2}),
        (COMPLETIONS, {"prompt": [[1, 2], [3]], "n": 2, "return_token_ids": True}),
        (COMPLETIONS, {"prompt": "a", "stop": ["quick"], "include_stop_str_in_output": True}),
        (COMPLETIONS, {"prompt": "a", "resume": {"output_token_ids": [84], "sent_chars": 1}}),
        ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"shout": True}}),
        ("/v1/chat/completions", {**CHAT, "logit_bias": {"5": 1.5}, "bad_words": ["x"]}),
        ("/openai/v1/chat/completions", {**CHAT, "model": "alias"}),
        (INFERENCES, INFER),
        ("/tokenize", {"prompt": "é", "return_token_strs": True}),
        ("/tokenize", {"messages": CHAT["messages"]}),
        ("/detokenize", {"tokens": [104, 105]}),
        (COMPLETIONS, {"prompt": [258]}),
        (COMPLETIONS, {"prompt": ["a"] * 257}),
        (COMPLETIONS, {"prompt": [1] * 513}),
        (COMPLETIONS, {"prompt": "a", "model": "another"}),
        (COMPLETIONS, {"prompt": "a", "n": "two"}),
        (COMPLETIONS, {"prompt": "a", "resume": {"output_token_ids": [1] * 513}}),
        (COMPLETIONS, [1]),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "refuse"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}),
        (INFERENCES, {"inputs": []}),
        ("/tokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
    ],
)
async def test_a_large_body_is_answered_as_a_small_one_is(
    server: Any, path: str, body: Any
) -> None:
    small = await server.post(path, body)
    large = await server.post(path, content=padded(body))
    assert large.status_code == small.status_code
    assert without_ids(large.json()) == without_ids(small.json())
    requests = server.core.requests
    half = len(requests) // 2
    for each in requests[:half]:
        each.handle, each.request_id = 0, ""
    for each in requests[half:]:
        each.handle, each.request_id = 0, ""
    assert requests[:half] == requests[half:]


async def test_a_large_body_streams(server: Any) -> None:
    answer = await server.post("/v1/chat/completions", content=padded({**CHAT, "stream": True}))
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    texts = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(texts) == "The q"


async def test_a_large_prompt_is_reported_to_routers(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_backlog, "KEPT_SECONDS", 0.0)
    state = server.app.state.server
    reporter = state.make_reporter(await server.core.wait_ready())
    body = {"prompt": "a" * 500, "max_tokens": 1}
    reports = []
    for _ in range(2):
        with reporter.subscribe() as subscription:
            await server.post(COMPLETIONS, content=padded(body))
            async with asyncio.timeout(10):
                made, dropped = await subscription.next_reports()
            reports.append((made, dropped))
    with reporter.subscribe() as subscription:
        await server.post(COMPLETIONS, body)
        async with asyncio.timeout(10):
            reports.append(await subscription.next_reports())
    assert reports[0] == reports[1] == reports[2]
    assert len(reports[0][0]) == 1


async def test_while_many_are_read_a_body_waits_and_other_routes_answer(server: Any) -> None:
    turns = server.app.state.server.turns
    async with AsyncExitStack() as others:
        for _ in range(MAX_BODIES):
            await others.enter_async_context(turns.body())
        posted = asyncio.create_task(server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1}))
        for _ in range(5):
            assert (await server.get("/v1/models")).status_code == 200
        assert not posted.done()
        assert not server.core.requests
    assert (await posted).status_code == 200


async def post_to_a_stopped_worker(server: Any) -> tuple[Any, Any, asyncio.Task[Any]]:
    """Return the workers, one that is stopped with a body, and the post of that body."""
    workers = server.app.state.server.body_workers
    await server.post(COMPLETIONS, content=padded({"prompt": "a", "max_tokens": 1}))
    [worker] = workers.idle
    os.kill(worker.pid, signal.SIGSTOP)
    posted = asyncio.create_task(server.post(COMPLETIONS, content=padded({"prompt": "a"})))
    async with asyncio.timeout(10):
        while workers.idle:  # noqa: ASYNC110 - nothing tells when the worker has its job
            await asyncio.sleep(0.001)
    return workers, worker, posted


async def test_when_a_worker_is_killed_its_body_alone_is_lost(server: Any) -> None:
    workers, worker, posted = await post_to_a_stopped_worker(server)
    os.kill(worker.pid, signal.SIGKILL)
    answer = await posted
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "body_not_read"
    again = await server.post(COMPLETIONS, content=padded({"prompt": "a", "max_tokens": 1}))
    assert again.status_code == 200
    assert workers.budget.held == 0


async def test_a_client_that_leaves_frees_what_its_body_held(server: Any) -> None:
    workers, _, posted = await post_to_a_stopped_worker(server)
    async with asyncio.timeout(10):
        posted.cancel()
        while workers.budget.held:  # noqa: ASYNC110 - nor when it has lost it
            await asyncio.sleep(0.001)
    again = await server.post(COMPLETIONS, content=padded({"prompt": "a", "max_tokens": 1}))
    assert again.status_code == 200


async def test_large_bodies_beyond_the_budget_are_told_to_come_again(server: Any) -> None:
    budget = server.app.state.server.body_workers.budget
    budget.take(budget.limit - LARGE_BODY_BYTES)
    answer = await server.post(COMPLETIONS, content=padded({"prompt": "a"}))
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == "too_many_large_bodies"
    budget.give_back(budget.limit - LARGE_BODY_BYTES)
    fits = await server.post(COMPLETIONS, content=padded({"prompt": "a", "max_tokens": 1}))
    assert fits.status_code == 200
    assert budget.held == 0


async def test_before_the_model_serves_a_large_body_is_not_read(start_server: Any) -> None:
    server = await start_server(ready=False)
    answer = await server.post(COMPLETIONS, content=padded({"prompt": "a"}))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "starting"
    assert server.app.state.server.body_workers.budget.held == 0
