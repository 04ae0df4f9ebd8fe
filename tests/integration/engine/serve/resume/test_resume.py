"""A stream that is broken at any event goes on in another engine as if nothing had happened."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
STREAMS_AT_ONCE = 8
COPY = "Copy: über Größe naïve 😀 🎉 Zürich"
"""Copied exactly, one byte a token: most characters arrive in several parts."""
USAGE = {"stream_options": {"include_usage": True}}


def chat(prompt: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": prompt}]
    return CHAT, {"model": "tiny", "messages": messages, "max_tokens": 45, **USAGE, **fields}


def completion(prompt: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 24, "ignore_eos": True}
    return COMPLETIONS, {**body, **USAGE, **fields}


STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": chat(COPY, temperature=0),
    "logprobs": chat(COPY, temperature=0, logprobs=True, top_logprobs=3),
    "stop_over_tokens": chat(
        COPY, temperature=0, stop=["🎉 Zü", "Größenwahn", "naive"], logprobs=True
    ),
    "stop_kept": chat(
        COPY, temperature=0, stop=["ve 😀", "e 🎉"], include_stop_str_in_output=True, logprobs=True
    ),
    "stop_after_min_tokens": chat(COPY, temperature=0, stop=["ö", " 🎉"], min_tokens=20),
    "stop_id": chat("Count to twelve", temperature=0, stop_token_ids=[318], return_token_ids=True),
    "length_in_a_character": chat(COPY, temperature=0, max_tokens=24),
    "usage_in_each": chat(
        "Count to twelve",
        temperature=0,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    ),
    "seeded": chat("Tell me a story.", temperature=1.8, seed=11, ignore_eos=True, max_tokens=32),
    "unseeded": chat("Tell me a story.", temperature=1.8, ignore_eos=True, max_tokens=32),
    "penalties": chat(
        "Hello!",
        temperature=1.2,
        seed=5,
        max_tokens=32,
        ignore_eos=True,
        presence_penalty=0.7,
        frequency_penalty=0.9,
        repetition_penalty=1.3,
        logit_bias={"223": 2},
        bad_words=["!", "hel"],
        logprobs=True,
        top_logprobs=2,
    ),
    "two_choices": chat(
        "Hello!", n=2, temperature=2.0, seed=3, max_tokens=12, ignore_eos=True, logprobs=True
    ),
    "completion": completion("Die Größe: Zürich 😀", temperature=1.0, seed=9, stop=["zz", "é"]),
    "completion_logprobs": completion(
        "Zürich 😀", temperature=0.8, top_p=0.9, top_k=50, min_p=0.01, seed=2, logprobs=2, echo=True
    ),
    "completion_of_ids": completion([41, 84, 130, 123], temperature=0, return_token_ids=True),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_killed_at_every_event(
    pair: Any, caller: Any, client_view: Any, differences: Any, name: str
) -> None:
    one, other = pair
    path, body = STREAMS[name]
    await caller.events(one, path, body)  # later ones find its prompt in the cache, all alike
    whole = await caller.events(one, path, body)
    unbroken = client_view(path, whole)
    slots = asyncio.Semaphore(STREAMS_AT_ONCE)

    async def break_at(count: int) -> list[Any]:
        received = whole[:count]
        if name != "unseeded":
            async with slots:
                received = await caller.events(one, path, body, count)
            if received[-1].data == "[DONE]":
                # Tokens that came together made fewer events this time.
                received = whole[:count]
        async with slots:
            return await caller.resumed(other, path, body, received)

    joined = await asyncio.gather(*map(break_at, range(1, len(whole))))
    for broken_at, events in enumerate(joined, start=1):
        again = client_view(path, events)
        if body.get("n"):  # a caller adds up the usage of several answers itself
            again["usage"] = unbroken["usage"]
        assert differences(again, unbroken) == [], broken_at
    one.until(lambda: one.get("/load").json()["kv_usage"] == 0)


def test_the_streams_do_what_they_are_for(pair: Any) -> None:
    """Else breaking them would show less than it seems to."""
    one, _ = pair
    answers = {
        name: one.post(path, {k: v for k, v in body.items() if k != "stream_options"}).json()
        for name, (path, body) in STREAMS.items()
    }
    choices = {name: answer["choices"][0] for name, answer in answers.items()}
    content = {name: c["message"]["content"] for name, c in choices.items() if "message" in c}
    assert content["greedy"] == "über Größe naïve 😀 🎉 Zürich"
    assert content["stop_over_tokens"] == "über Größe naïve 😀 "
    assert content["stop_kept"] == "über Größe naïve 😀"
    assert content["stop_after_min_tokens"] == "über Größe naïve 😀"
    assert content["length_in_a_character"].endswith("\ufffd")
    assert choices["stop_id"]["stop_reason"] == 318
    assert content["seeded"] != content["unseeded"]
    assert answers["two_choices"]["choices"][1]["message"]["content"] != content["two_choices"]


async def test_broken_again_and_again(
    pair: Any, caller: Any, client_view: Any, differences: Any
) -> None:
    path, body = chat(COPY, temperature=1.0, seed=1, logprobs=True, stop=["Zurich", "zz"])
    unbroken = client_view(path, await caller.events(pair[0], path, body))
    joined = await caller.events(pair[0], path, body, 3)
    for turn in range(1, 50):
        fields = caller.resume_fields(joined, 0)
        more = await caller.events(pair[turn % 2], path, {**body, "resume": fields}, 3)
        joined += more
        if more[-1].data == "[DONE]":
            break
    assert turn > 5
    assert differences(client_view(path, joined), unbroken) == []


async def test_an_engine_that_is_killed(
    start_tiny: Any, pair: Any, caller: Any, client_view: Any, differences: Any, assert_gone: Any
) -> None:
    victim, other = start_tiny(), pair[1]
    path, body = chat("Count to 100", temperature=0, max_tokens=150, logprobs=True)
    unbroken = client_view(path, await caller.events(other, path, body))
    children = victim.descendants()
    received = []
    async for event in caller.stream(victim, path, body):
        received.append(event)
        if len(received) == 20:
            victim.process.send_signal(signal.SIGKILL)
    assert received[-1].data != "[DONE]"
    joined = await caller.resumed(other, path, body, received)
    assert differences(client_view(path, joined), unbroken) == []
    assert_gone(children)
