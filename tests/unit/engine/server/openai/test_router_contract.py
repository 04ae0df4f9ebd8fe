"""The engine contract: what a router gets, and that a broken answer is resumed exactly."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SECRET = {"x-kvasir-fleet-secret": "fleet"}
CHAT_PATH = "/v1/chat/completions"
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        CHAT_PATH,
        {
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 60,
            "stop": ["dog", "lazy cat", "<stop>"],
            "logprobs": True,
            "top_logprobs": 1,
        },
    ),
    "chat_to_the_end": (CHAT_PATH, {"messages": [{"role": "user", "content": "hi"}]}),
    "chat_two": (
        CHAT_PATH,
        {"messages": [{"role": "user", "content": "hi"}], "n": 2, "max_tokens": 12, "stop": "zz"},
    ),
    "completion": (
        "/v1/completions",
        {"prompt": "abc", "max_tokens": 30, "echo": True, "stop": ["ox ju", "over"]},
    ),
    "completion_logprobs": (
        "/v1/completions",
        {"prompt": "abc", "max_tokens": 12, "logprobs": 1, "echo": True, "return_token_ids": True},
    ),
}


@pytest.fixture
async def server(start_server):
    return await start_server(fleet_secret="fleet")


@pytest.mark.parametrize("name", BODIES)
async def test_every_event_carries_its_ids_and_the_ends_seed_and_usage(server, name, router):
    path, body = BODIES[name]
    body = {**body, "seed": 5, "stream_options": {"include_usage": True}}
    events = await router.stream_events(server, path, body)
    ids: dict[int, list[int]] = {}
    for event in events:
        comment = event["comment"]
        if "i" in comment:
            ids.setdefault(comment["i"], []).extend(comment["t"])
    firsts = [next(e["comment"] for e in events if e["comment"].get("i") == i) for i in ids]
    assert all(comment["s"] == 5 for comment in firsts)
    assert sum("s" in event["comment"] for event in events) == len(ids)
    usage = events[-1]["comment"]["u"]
    assert usage["completion_tokens"] == sum(map(len, ids.values()))
    assert router.merge(events)["usage"] == usage
    assert sum("u" in event["comment"] for event in events) == 1


@pytest.mark.parametrize("tokens_a_batch", [1, 3])
@pytest.mark.parametrize("name", BODIES)
async def test_a_stream_broken_at_any_event_joins_to_the_unbroken_one(
    server, start_server, name, tokens_a_batch, router
):
    path, body = BODIES[name]
    server.core.tokens_a_batch = tokens_a_batch
    body = {**body, "seed": 3, "stream_options": {"include_usage": True}}
    events = await router.stream_events(server, path, body)
    unbroken = router.merge(events)
    other = await start_server(fleet_secret="fleet")
    for broken_at in range(1, len(events)):
        received = events[:broken_at]
        joined = list(received)
        for index in unbroken["choices"]:
            finished = router.merge(received)["choices"].get(index, {}).get("finish_reason")
            if finished and len(unbroken["choices"]) > 1:
                continue  # the router resumes a choice a request, those that still ran
            fields = router.resume_fields(received, index)
            joined += await router.stream_events(other, path, {**body, "resume": fields})
        again = router.merge(joined)
        assert again["choices"] == unbroken["choices"], broken_at
        assert (again["id"], again["created"]) == (unbroken["id"], unbroken["created"])
        if len(unbroken["choices"]) == 1:
            assert again["usage"] == unbroken["usage"]


async def test_a_resumed_stream_has_no_second_role_and_skips_sent_characters(server, router):
    path, body = BODIES["chat_to_the_end"]
    ids = server.core.tokenizer.encode("The quick")
    fields = {"output_token_ids": ids, "seed": 0, "sent_chars": 4, "id": "x", "created": 9}
    events = await router.stream_events(server, path, {**body, "max_tokens": 12, "resume": fields})
    assert events[0]["data"]["choices"][0]["delta"] == {"content": "quick"}
    merged = router.merge(events)
    assert merged["choices"][0]["text"] == "quick br"
    assert merged["choices"][0]["roles"] == 0
    assert (merged["id"], merged["created"]) == ("x", 9)
    [request] = server.core.requests
    assert request.resume.output_token_ids == ids
    assert events[-1]["comment"]["u"]["completion_tokens"] == 12


async def test_a_sample_that_was_complete_only_ends_again(server, router):
    path, body = BODIES["chat_to_the_end"]
    ids = server.core.tokenizer.encode("The quick")
    fields = {"output_token_ids": ids, "seed": 0, "sent_chars": len("The quick")}
    events = await router.stream_events(
        server, path, {**body, "max_tokens": len(ids), "resume": fields}
    )
    assert server.core.requests == []
    assert router.merge(events)["choices"][0]["finish_reason"] == "length"
    assert router.merge(events)["choices"][0]["text"] == ""


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("name", ["chat", "chat_to_the_end", "completion"])
async def test_behind_the_finish_reason_come_only_usage_and_done(server, name, usage, router):
    path, body = BODIES[name]
    body = {**body, "seed": 3, "stream_options": {"include_usage": usage}}
    events = await router.stream_events(server, path, body)
    [at] = [i for i, event in enumerate(events) if event["data"] != "[DONE]" and ended(event)]
    fields = router.resume_fields(events[: at + 1], 0)
    asked = len(server.core.requests)
    rest = await router.stream_events(server, path, {**body, "resume": fields})
    assert len(server.core.requests) == asked
    assert rest == events[at + 1 :]
    assert [event["data"] == "[DONE]" for event in rest] == [False] * usage + [True]


def ended(event: dict[str, Any]) -> bool:
    return any(choice.get("finish_reason") for choice in event["data"]["choices"])


async def test_a_finish_that_the_ids_do_not_show_is_believed(server, router):
    path, body = BODIES["chat_to_the_end"]
    fields = {"output_token_ids": [1, 2], "seed": 0, "sent_chars": 2, "finished": True}
    [done] = await router.stream_events(server, path, {**body, "resume": fields})
    assert done["data"] == "[DONE]"
    assert done["comment"]["u"]["completion_tokens"] == 2
    assert server.core.requests == []


async def test_one_choice_of_several_prompts_is_resumed(server, router):
    body = {"prompt": ["a", "bc"], "n": 2, "max_tokens": 4, "seed": 0}
    fields = {"output_token_ids": server.core.tokenizer.encode("he"), "sample_index": 3, "seed": 0}
    events = await router.stream_events(server, "/v1/completions", {**body, "resume": fields})
    assert list(router.merge(events)["choices"]) == [3]
    [request] = server.core.requests
    assert server.core.tokenizer.decode(request.prompt_token_ids) == "bc"
    assert (request.params.n, request.resume.sample_index) == (1, 1)


async def test_a_unary_resume_answers_with_the_rest(server):
    path, body = BODIES["completion"]
    ids = server.core.tokenizer.encode("The quick")
    fields = {"output_token_ids": ids, "seed": 0, "sent_chars": len("abcThe")}
    answer = await server.post(path, {**body, "resume": fields, "return_token_ids": True})
    [choice] = answer.json()["choices"]
    assert choice["text"] == " quick brown f"
    assert choice["stop_reason"] == "ox ju"
    assert answer.json()["usage"]["completion_tokens"] == len("The quick brown fox ju")
    assert server.core.tokenizer.decode(choice["token_ids"]) == " brown fox ju"


async def test_unary_answers_carry_usage_and_seed_in_headers(server):
    path, body = BODIES["chat"]
    answer = await server.post(path, {**body, "seed": 5}, headers=SECRET)
    assert json.loads(answer.headers["x-kvasir-usage"]) == answer.json()["usage"]
    assert answer.headers["x-kvasir-seed"] == "5"


@pytest.mark.parametrize("headers", [{}, {"x-kvasir-fleet-secret": "flee"}])
async def test_without_the_secret_there_is_nothing_of_it(server, headers):
    path, body = BODIES["chat"]
    unary = await server.post(path, body, headers=headers)
    assert not [name for name in unary.headers if "kvasir" in name]
    stream = await server.post(path, {**body, "stream": True}, headers=headers)
    assert "kvasir" not in stream.text


async def test_without_a_configured_secret_none_is_right(start_server):
    server = await start_server()
    path, body = BODIES["chat"]
    answer = await server.post(path, body, headers={"x-kvasir-fleet-secret": ""})
    assert "x-kvasir-usage" not in answer.headers


async def broken_off(server, body: dict[str, Any], path: str, headers: dict[str, str]) -> Any:
    """Start a request, drain past its deadline in the middle of it, and give its answer."""
    server.core.step_seconds = 0.01
    running = asyncio.create_task(server.post(path, body, headers=headers))
    while not server.core.requests:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await server.lifecycle.drain(0.1)
    return await running


async def test_at_the_drain_deadline_a_stream_is_handed_over(server, start_server, router):
    path, body = BODIES["chat_to_the_end"]
    body = {**body, "stream": True, "seed": 4, "max_tokens": 70}
    answer = await broken_off(server, body, path, SECRET)
    *events, last = router.parse(answer.text)
    assert last["event"] == "handover"
    assert last["data"]["seed"] == 4
    assert last["comment"]["u"] == last["data"]["usage"]
    fields = router.resume_fields(events, 0)
    [choice] = last["data"]["choices"]
    assert choice == {"i": 0, "t": fields["output_token_ids"], "finish_reason": None}
    assert 0 < len(choice["t"]) < 70

    other = await start_server(fleet_secret="fleet")
    joined = router.merge(
        events + await router.stream_events(other, path, {**body, "resume": fields})
    )
    whole = router.merge(await router.stream_events(other, path, body))
    assert joined["choices"] == whole["choices"]


async def test_a_plain_client_gets_an_error_event_at_the_deadline(server):
    path, body = BODIES["chat_to_the_end"]
    answer = await broken_off(server, {**body, "stream": True}, path, {})
    last = answer.text.split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "handover"
    assert "[DONE]" not in answer.text


@pytest.mark.parametrize("headers", [SECRET, {}])
async def test_a_unary_answer_at_the_deadline_is_a_503(server, headers):
    path, body = BODIES["chat_to_the_end"]
    answer = await broken_off(server, {**body, "seed": 4}, path, headers)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    handover = answer.json()["error"].get("handover")
    assert (handover is not None) == bool(headers)
    if handover:
        [choice] = handover["choices"]
        assert len(choice["t"]) == handover["usage"]["completion_tokens"] > 0
