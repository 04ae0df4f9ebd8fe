"""The exact index for engines that publish KV events and know nothing of this router."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from kvasir.text.chat_template import load_chat_template
from kvasir_router.index.hit_check import HitSource
from kvasir_router.options.tokenizing_settings import TokenizingSettings

pytestmark = pytest.mark.slow

PATH = "/v1/chat/completions"
PATIENT = TokenizingSettings(deadline=60.0)


def chat(text: str, question: str = "why?") -> dict[str, Any]:
    messages = [{"role": "system", "content": text}, {"role": "user", "content": question}]
    return {"model": "m", "messages": messages}


class Fleet:
    """Two foreign engines with publishers, and a router whose index can be looked into."""

    def __init__(self, router, replicas, publishers, tokenizer, template, client) -> None:
        self.router = router
        self.replicas = replicas
        self.publishers = publishers
        self.tokenizing = router.server.gateway.tokenizing
        self.index = router.server.fleet.models["m"].policy.index
        self._tokenizer = tokenizer
        self._template = template
        self._client = client

    def outcomes(self, outcome: str) -> int:
        return self.tokenizing.outcomes["m", outcome]

    def process(self) -> int:
        """The tokenising process's id."""
        return self.tokenizing._pool._processes[0]._process.pid

    async def hold(self, number: int, *texts: str) -> None:
        """Engine `number` announces these system prompts, which others have computed there."""
        before = self.index.residency.blocks
        for text in texts:
            rendered = self._template.render(chat(text)["messages"], add_generation_prompt=True)
            ids = self._tokenizer.encode(rendered, add_special_tokens=False)
            async with asyncio.timeout(20):
                while self.index.residency.blocks == before:
                    self.publishers[number].stored(ids)
                    await asyncio.sleep(0.05)
            before = self.index.residency.blocks

    async def warm(self, words: Callable[[int, int], str]) -> None:
        """Ask until prompts are tokenised: at first the process has to start."""
        async with asyncio.timeout(60):
            while not self.outcomes("made"):
                await self.ask(words(1000 + sum(self.tokenizing.outcomes.values()), 700))
            while self.tokenizing._pool._processes[0].waiting:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        self.tokenizing.outcomes.clear()

    async def ask(self, text: str, question: str = "why?") -> int:
        """The engine that the request went to."""
        counts = [len(replica.requests) for replica in self.replicas]
        response = await self._client.post(self.router.url + PATH, json=chat(text, question))
        assert response.status_code == 200, response.text
        now = [len(replica.requests) for replica in self.replicas]
        [went] = [at for at in range(len(now)) if now[at] > counts[at]]
        return went


@pytest.fixture
async def start_fleet(
    start_replica, start_router, start_publisher, tiny, tokenizer, client, eventually
) -> Callable[..., Any]:
    async def start(
        shape: str = "arrays", settings: TokenizingSettings = PATIENT, **entry: Any
    ) -> Fleet:
        replicas = [await start_replica(), await start_replica()]
        publishers = [start_publisher(shape), start_publisher(shape)]
        entries = [
            {"id": f"r{at}", "url": r.url, "engine": "vllm", "kv_events": p.address}
            for at, (r, p) in enumerate(zip(replicas, publishers, strict=True))
        ]
        model = {"name": "m", "replicas": entries, "tokenizer": str(tiny), **entry}
        router = await start_router([model], tokenizing=settings)
        template = load_chat_template(tiny, tokenizer.special_tokens)
        return Fleet(router, replicas, publishers, tokenizer, template, client)

    return start


@pytest.mark.parametrize("shape", ["arrays", "maps"])
async def test_prompts_go_where_others_have_computed_them(start_fleet, words, shape) -> None:
    fleet = await start_fleet(shape)
    await fleet.warm(words)
    texts = [words(seed, 700) for seed in range(4)]
    for at, text in enumerate(texts):
        await fleet.hold(at % 2, text)
    assert [await fleet.ask(text) for text in texts] == [0, 1, 0, 1]
    assert fleet.outcomes("made") == 4
    chosen = fleet.index.check.predicted
    assert not chosen, "these engines tell no usage"
    # What is known costs no tokenising: the same texts again, now also sent there before
    assert [await fleet.ask(text) for text in texts] == [0, 1, 0, 1]
    assert fleet.outcomes("made") == 4
    assert await fleet.router.metric("tokenized_prompts_total", outcome="made") == 4


async def test_exact_is_what_it_is_called(start_fleet, words) -> None:
    fleet = await start_fleet()
    await fleet.warm(words)
    text = words(7, 700)
    await fleet.hold(1, text)
    assert await fleet.ask(text) == 1
    explained = await fleet._client.post(
        f"{fleet.router.admin_url}/debug/route", json=chat(text), params={"path": PATH}
    )
    rows = {row["replica"]: row for row in explained.json()["candidates"]}
    assert rows["r1"]["source"] == HitSource.EXACT.value
    assert rows["r1"]["hit_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/responses", "input"), ("/v1/messages", "messages")]
)
async def test_what_other_engines_make_of_other_protocols_is_not_guessed(
    start_fleet, words, path: str, field: str
) -> None:
    """Their text alone decides: the same beginning goes where it went before."""
    fleet = await start_fleet()
    await fleet.warm(words)
    fleet.replicas[0].requests.clear()
    fleet.replicas[1].requests.clear()
    for number in range(4):
        content = f"{words(5, 700)} {number}"
        body = {"model": "m", "max_tokens": 9, field: [{"role": "user", "content": content}]}
        response = await fleet._client.post(fleet.router.url + path, json=body)
        assert response.status_code == 200
    assert not fleet.tokenizing.outcomes
    assert sorted(len(replica.requests) for replica in fleet.replicas) == [0, 4]


async def test_a_choice_does_not_wait_beyond_the_deadline(start_fleet, words, eventually) -> None:
    fleet = await start_fleet(settings=TokenizingSettings(deadline=0.02))
    await fleet.warm(words)
    text = words(2, 700)
    await fleet.hold(0, text)
    os.kill(fleet.process(), signal.SIGSTOP)
    await fleet.ask(text, "first")
    assert fleet.outcomes("late") == 1
    assert fleet.outcomes("made") == 0
    os.kill(fleet.process(), signal.SIGCONT)
    await eventually(lambda: fleet.outcomes("made") == 1, 30)
    assert await fleet.ask(text, "second") == 0, "what came late is learned"


async def test_a_client_that_leaves_meanwhile(start_fleet, words, post, eventually) -> None:
    fleet = await start_fleet()
    await fleet.warm(words)
    os.kill(fleet.process(), signal.SIGSTOP)
    body = json.dumps(chat(words(2, 700))).encode()
    _, writer = await fleet.router.connect()
    writer.write(post(body))
    await eventually(lambda: fleet.tokenizing._pool._processes[0].waiting == 1)
    writer.close()
    await eventually(
        lambda: len(fleet.router.server.gateway.clients.connections) == 1
    )  # the other client
    asked = sum(len(replica.requests) for replica in fleet.replicas)
    os.kill(fleet.process(), signal.SIGCONT)
    await eventually(lambda: fleet.outcomes("made") == 1, 30)
    assert sum(len(replica.requests) for replica in fleet.replicas) == asked
    assert fleet.router.in_flight() == 0


async def test_a_tokenizer_that_cannot_be_read_leaves_the_approximate_index_for_a_while(
    start_fleet, words, tiny, tmp_path, eventually, monkeypatch
) -> None:
    with structlog.testing.capture_logs() as logs:
        fleet = await start_fleet(tokenizer=str(tmp_path))
        text = words(3, 700)
        went = await fleet.ask(text)
        assert await fleet.ask(text) == went
        await eventually(lambda: any("cannot be used" in log["event"] for log in logs), 30)
    assert fleet.outcomes("made") == 0
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tiny / name).exists():
            shutil.copy(tiny / name, tmp_path)
    monkeypatch.setattr("kvasir_router.tokenizing.tokenizing.RETRY_SECONDS", 0.0)
    [state] = fleet.tokenizing._states.values()
    state.retry_at = 0.0
    await fleet.warm(words)


async def test_without_a_tokenizer_the_log_says_so_once(start_fleet, write_config, words) -> None:
    with structlog.testing.capture_logs() as logs:
        fleet = await start_fleet(tokenizer=None)
        fleet.router.server.gateway.keep_models()
        await fleet.ask(words(3, 700))
    assert sum("without the model's tokenizer" in log["event"] for log in logs) == 1
    assert not fleet.tokenizing._pool._processes


async def test_another_block_size_means_other_blocks(start_fleet, words) -> None:
    fleet = await start_fleet()
    await fleet.warm(words)
    text = words(4, 700)
    await fleet.hold(1, text)
    assert await fleet.ask(text) == 1
    assert len(fleet.index.texts) > 0
    known = fleet.outcomes("made")
    fleet.index.residency.block_size = 32
    await fleet.ask(text)
    assert fleet.outcomes("made") == known + 1
