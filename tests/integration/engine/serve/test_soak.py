"""A thousand requests of every kind against one engine whose pool preempts many."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

REQUESTS, AT_ONCE = 1000, 96
FLAGS = ("--served-model-name", "tiny", "--scheduling-policy", "priority")
SIZES = ("--max-num-seqs", "64", "--max-model-len", "256", "--max-num-batched-tokens", "512")
POOL = ("--kv-cache-memory-bytes", "3000000")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SORT = [{"role": "user", "content": "Sort: 7 3 9 1"}]
PROMPTS = (
    "Hello!",
    "Copy: über Größe naïve 😀 🎉 Zürich",
    "Recall: a=4, b=7, c=2, d=11, e=5, f=9, g=1, h=8. What is b?",
    "Extract as JSON: Anna is 31 years old and lives in Oslo.",
    "Count to fifty",
)
GROWTH = 0.05
GROWTH_BYTES = 8 << 20

BAD: tuple[tuple[str, dict[str, Any] | bytes, str], ...] = (
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_tokens": 5000}, "context"),
    (CHAT, {"temperature": -1}, "temperature"),
    (CHAT, {"top_p": 0}, "top_p"),
    (CHAT, {"n": 100000}, "n"),
    (CHAT, {"n": 65}, "n must be at most 64"),
    (CHAT, {"stop": [str(i) for i in range(1000)]}, "stop"),
    (CHAT, {"logit_bias": {"99999": 1}}, "logit_bias"),
    (CHAT, {"top_logprobs": 3}, "top_logprobs"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 900}]}, "context"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools[0]"),
    (CHAT, {"stream": True, "use_beam_search": True}, "use_beam_search"),
    (CHAT, {"resume": {"output_token_ids": [-1]}}, "output_token_ids"),
    (CHAT, b'{"messages": [', "not valid JSON"),
    (CHAT, b'{"messages": "\xff"}', "not valid UTF-8"),
    (COMPLETIONS, {"prompt": [1, 10**6]}, "prompt"),
    (COMPLETIONS, {"prompt": ["good", ""]}, "prompt"),
    (COMPLETIONS, {"prompt": "x", "logprobs": 10**6}, "logprobs"),
)


def good_body(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A request that is answered unless its caller leaves."""
    body: dict[str, Any] = {"model": "tiny", "max_tokens": draw.randint(1, 40)}
    if draw.random() < 0.1:
        return CHAT, {**body, "messages": SORT, "temperature": 0, "max_tokens": 16}
    prompt = draw.choice(PROMPTS)
    chat = draw.random() < 0.5
    body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    if draw.random() < 0.06:
        beams = {"use_beam_search": True, "n": draw.randint(2, 3), "temperature": 0}
        return (CHAT if chat else COMPLETIONS), {**body, **beams}
    for chance, fields in (
        (0.2, {"temperature": 0}),
        (0.3, {"temperature": 1.5, "top_p": 0.9, "top_k": 40}),
        (0.3, {"seed": draw.randrange(2**31)}),
        (0.2, {"stop": ["e", "!", "über G", " 4"][: draw.randint(1, 4)]}),
        (0.2, {"ignore_eos": True}),
        (0.2, {"n": draw.randint(2, 4)}),
        (0.2, {"priority": draw.randint(-3, 3)}),
        (0.1, {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}),
        (0.2, {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}),
    ):
        if draw.random() < chance:
            body |= fields
    kind = draw.random()
    if kind < 0.5:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    elif kind < 0.6:
        body["prompt_logprobs"] = 1
    if not chat and draw.random() < 0.2:
        body["prompt"] = [prompt, "Reverse: kvasir"]
    return (CHAT if chat else COMPLETIONS), body


class Soak:
    """Send the requests and count how each ended."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
        # No time limit but the test's: one of low priority waits for nearly all of the others.
        self._http = httpx.AsyncClient(
            base_url=url, timeout=None, limits=limits, trust_env=False, verify=False
        )
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.ends: Counter[str] = Counter()
        self.choices = 0
        self.tokens = 0

    async def send(self, first: int, count: int) -> None:
        """Requests number `first` and on; each is drawn from its number alone."""
        await asyncio.gather(*(self._one(random.Random(first + i)) for i in range(count)))

    async def close(self) -> None:
        await self._http.aclose()

    async def _one(self, draw: random.Random) -> None:
        kind = draw.random()
        async with self._slots:
            if kind < 0.1:
                end = await self._bad(*draw.choice(BAD))
            else:
                path, body = good_body(draw)
                patience = draw.expovariate(5) if kind < 0.3 else None
                end = await self._good(path, body, patience)
        self.ends[end] += 1

    async def _bad(self, path: str, fields: dict[str, Any] | bytes, said: str) -> str:
        base = {"messages": SORT} if path == CHAT else {}
        raw = fields if isinstance(fields, bytes) else json.dumps({**base, **fields}).encode()
        answer = await self._http.post(path, content=raw)
        assert answer.status_code == 400, (fields, answer.text)
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert said in error["message"], (fields, error)
        return "refused"

    async def _good(self, path: str, body: dict[str, Any], patience: float | None) -> str:
        try:
            async with asyncio.timeout(patience):
                async with self._http.stream("POST", path, json=body) as answer:
                    text = (await answer.aread()).decode()
        except TimeoutError:
            return "broken"
        assert answer.status_code == 200, (body, text)
        self._check(body, text)
        return "answered"

    def _check(self, body: dict[str, Any], text: str) -> None:
        parts = [json.loads(text)] if not body.get("stream") else stream_data(text)
        ended = [c for part in parts for c in part["choices"] if c["finish_reason"]]
        prompts = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
        assert len(ended) == prompts * body.get("n", 1), (body, text)
        assert {choice["finish_reason"] for choice in ended} <= {"stop", "length"}, text
        if body.get("messages") is SORT:
            assert ended[0]["message"]["content"] == "1 3 7 9"
        self.choices += len(ended)
        self.tokens += parts[-1]["usage"]["completion_tokens"]


def stream_data(text: str) -> list[dict[str, Any]]:
    events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]", text
    return [json.loads(event) for event in events[:-1]]


def metric(exposition: str, name: str, label: str = "") -> float:
    """The sum of a metric's samples whose labels contain `label`."""
    lines = re.findall(rf"^kvasir_{name}{{(.*)}} (\S+)$", exposition, re.MULTILINE)
    assert lines, name
    return sum(float(value) for labels, value in lines if label in labels)


def resident_bytes(served: Any) -> list[int]:
    """Of the core and the API process."""
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in served.descendants()]
    return [int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10 for status in statuses]


def idle(served: Any) -> bool:
    load = served.get("/load").json()
    return not any(load.values())


@pytest.mark.slow
@pytest.mark.timeout(900)  # two minutes of CPU, on a machine that others use too
async def test_a_thousand_requests(serve: Callable[..., Any]) -> None:
    served = serve("builtin://kvasir-tiny", *FLAGS, *SIZES, *POOL)
    soak = Soak(served.url)
    await soak.send(0, REQUESTS // 2)
    served.until(lambda: idle(served))
    before = resident_bytes(served)
    await soak.send(REQUESTS // 2, REQUESTS // 2)
    served.until(lambda: idle(served))
    after = resident_bytes(served)
    await soak.close()

    assert soak.ends.total() == REQUESTS
    assert all(soak.ends[end] > REQUESTS / 20 for end in ("answered", "broken", "refused"))
    for old, new in zip(before, after, strict=True):
        assert new - old < max(GROWTH_BYTES, GROWTH * old)

    metrics = served.get("/metrics").text
    assert metric(metrics, "num_preemptions_total") > 0
    assert metric(metrics, "prefix_cache_hits_total") > 0
    by_reason = {
        reason: metric(metrics, "request_success_total", f'finished_reason="{reason}"')
        for reason in ("stop", "length", "abort", "error")
    }
    assert by_reason["error"] == 0
    assert by_reason["abort"] > 0
    assert by_reason["stop"] + by_reason["length"] >= soak.choices
    assert sum(by_reason.values()) == metric(metrics, "request_params_n_sum")
    assert metric(metrics, "generation_tokens_total") >= soak.tokens
    assert metric(metrics, "http_requests_total", 'status="400"') == soak.ends["refused"]
    assert metric(metrics, "http_requests_total", 'status="500"') == 0

    again = served.post(CHAT, {"messages": SORT, "temperature": 0}).json()
    assert again["choices"][0]["message"]["content"] == "1 3 7 9"
    assert served.stop() == 0
    assert "Traceback" not in served.log.read_text()
