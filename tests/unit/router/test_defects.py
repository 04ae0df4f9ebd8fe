"""Defects injected under load: each costs at most the request or the look that it is in."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kvasir_router import tasks as tasks_module
from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key
from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.health_monitor import HealthMonitor
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.options.router_settings import QueueLimits
from kvasir_router.policy.kv_aware import KvAware
from kvasir_router.proxy.accounting import RequestAccounting
from kvasir_router.proxy.attempts.attempt import UpstreamRequest
from kvasir_router.proxy.attempts.attempts import Attempts
from kvasir_router.proxy.event_stream import EventStream
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.proxy.relay import Relay
from kvasir_router.scaling.signals import Signals
from kvasir_router.telemetry.router_metrics import Metrics
from kvasir_router.wire.upstream_pool import ConnectionPool

CLIENTS = 6
BODY = {"model": "m", "messages": [{"role": "user", "content": "word " * 50}]}


class Defect(Exception):
    """Raised once."""


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Let the nth call of a method raise; returns the list of its calls so far."""

    def inject(owner: type, name: str, nth: int = 10) -> list[int]:
        real, calls = getattr(owner, name), []

        def wrapped(*args: Any, **options: Any) -> Any:
            calls.append(len(calls))
            if len(calls) == nth:
                raise Defect
            return real(*args, **options)

        monkeypatch.setattr(owner, name, wrapped)
        return calls

    return inject


async def answer(exchange: Any) -> None:
    """As a replica: an object or events, after some time, so that others wait."""
    await asyncio.sleep(0.005)
    if not json.loads(exchange.request.body).get("stream"):
        await exchange.json(200, {"usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        return
    await exchange.start_events()
    for number in range(3):
        await exchange.chunk(b"data: %d\n\n" % number)
    await exchange.chunk(b"data: [DONE]\n\n")
    await exchange.end()


class Load:
    """Clients that ask for one answer after the other, and what became of each request."""

    def __init__(self, router: Any, **headers: str) -> None:
        self.outcomes: Counter[str] = Counter()
        self._url = f"{router.url}/v1/chat/completions"
        self._headers = headers
        self._going_on = True
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(CLIENTS)]

    async def _ask(self, number: int) -> None:
        async with httpx.AsyncClient(timeout=30, headers=self._headers) as client:
            turn = 0
            while self._going_on:
                turn += 1
                text = f"client {number} turn {turn} " + "word " * 50
                streams = bool(number % 2)
                body = BODY | {"messages": [{"role": "user", "content": text}], "stream": streams}
                try:
                    response = await client.post(self._url, json=body)
                except httpx.TransportError as error:
                    self.outcomes[type(error).__name__] += 1
                    continue
                whole = "[DONE]" in response.text if streams else "usage" in response.text
                self.outcomes["good" if whole else str(response.status_code)] += 1

    async def more(self, eventually: Any, count: int = 30) -> None:
        """Wait for so many good answers more."""
        until = self.outcomes["good"] + count
        await eventually(lambda: self.outcomes["good"] >= until)

    async def stop(self) -> int:
        """Return how many were lost."""
        self._going_on = False
        await asyncio.wait_for(asyncio.gather(*self._tasks), 60)
        return self.outcomes.total() - self.outcomes["good"]


@pytest.fixture
def loaded(start_replica, start_router, model_entry):
    """A router under load with two replicas of few slots, so that requests wait."""
    running: list[Load] = []

    async def start(headers: dict[str, str] | None = None, **options: Any) -> tuple[Any, Load]:
        replicas = [await start_replica(script=answer) for _ in range(2)]
        router = await start_router(
            [model_entry("m", *replicas)],
            max_in_flight=2,
            waiting=QueueLimits(requests=100),
            **options,
        )
        running.append(Load(router, **headers or {}))
        return router, running[0]

    return start


REQUEST_STAGES = [
    (Gateway, "_handle"),
    (Gateway, "_route"),
    (Fleet, "find"),
    (KvAware, "choose"),
    (KvAware, "sent"),
    (KvAware, "ended"),
    (ModelIndex, "match"),
    (Relay, "open"),
    (Relay, "start"),
    (Relay, "wait"),
    (Relay, "pass_on"),
    (Relay, "pass_whole"),
    (Relay, "answer_ended"),
    (Attempts, "rendered"),
    (UpstreamRequest, "start"),
    (UpstreamRequest, "response_started"),
    (UpstreamRequest, "response_data"),
    (ConnectionPool, "connect"),
    (EventStream, "take"),
    (RequestQueue, "enter"),
    (RequestQueue, "join"),
    (RequestQueue, "settle"),
    (RequestAccounting, "_account"),
]
"""What a request goes through."""


@pytest.mark.source_form
@pytest.mark.parametrize(("owner", "name"), REQUEST_STAGES)
async def test_a_stage_of_a_request_that_raises_costs_this_request_alone(
    loaded, inject, eventually, owner, name
) -> None:
    router, load = await loaded()
    await load.more(eventually)
    nth = 2 if owner is ConnectionPool else 10
    calls = inject(owner, name, nth)
    if owner is ConnectionPool:
        for _, replica in router.server.fleet.replicas():
            replica.pool._close_idle()
    await eventually(lambda: len(calls) >= nth)
    await load.more(eventually)
    lost = await load.stop()
    assert lost <= 1, load.outcomes
    await eventually(lambda: router.in_flight() == 0)
    gateway = router.server.gateway
    assert gateway.bodies.used == 0
    assert not gateway.tasks.down
    assert gateway.tasks.failures.total() == 1


LOOKS = [
    (RequestQueue, "serve", "queue"),
    (RequestQueue, "serve_and_expire", "queue"),
    (HealthMonitor, "_lines_for", "probes"),
    (Signals, "sample", "scaling signals"),
]


@pytest.mark.source_form
@pytest.mark.parametrize(("owner", "name", "task"), LOOKS)
async def test_a_task_that_raises_is_back_and_nothing_is_lost(
    loaded, inject, eventually, owner, name, task
) -> None:
    router, load = await loaded()
    await load.more(eventually)
    calls = inject(owner, name, 2)
    await eventually(lambda: len(calls) >= 2)
    before = len(calls)
    await eventually(lambda: len(calls) > before)
    await load.more(eventually)
    assert await load.stop() == 0, load.outcomes
    failures = router.server.gateway.tasks.failures
    assert failures[task] + failures[tasks_module.LOOP] == 1
    assert not router.server.gateway.tasks.down


async def test_a_snapshot_that_cannot_be_applied_costs_nothing(
    loaded, inject, eventually, write_config, start_replica, model_entry
) -> None:
    router, load = await loaded()
    calls = inject(Fleet, "apply", 1)
    other = await start_replica(script=answer)
    models = [model_entry("m", other), model_entry("n", other)]
    write_config(router.config, models)
    await eventually(lambda: len(calls) == 1)
    await load.more(eventually)
    models.append(model_entry("o", other))
    write_config(router.config, models)
    await eventually(lambda: "o" in router.server.fleet.models)
    await load.more(eventually)
    assert await load.stop() == 0, load.outcomes


async def test_keys_that_cannot_be_used_stay_and_the_next_ones_are_followed(
    loaded, eventually, tmp_path
) -> None:
    path = tmp_path / "keys.yaml"

    def write(*names: str) -> None:
        keys = tuple(ApiKey(id=name, hash=hash_key(name.encode())) for name in names)
        path.with_suffix(".new").write_bytes(dump_keys(KeyFile(keys=keys)))
        path.with_suffix(".new").replace(path)

    write("a")
    router, load = await loaded({"Authorization": "Bearer a"}, keys_file=path)
    keyring = router.server.gateway.admission.keyring
    read = keyring._file._read

    def fail() -> None:
        keyring._file._read = read
        raise Defect

    keyring._file._read = fail
    write("a", "b")
    await eventually(lambda: keyring.find(b"Bearer b") is not None)
    write("a", "c")
    await eventually(lambda: keyring.find(b"Bearer b") is None)
    await load.more(eventually)
    assert await load.stop() == 0, load.outcomes


class Unsized:
    """A transport that cannot say how much is unsent."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def get_write_buffer_size(self) -> int:
        raise Defect


async def test_a_deadline_that_cannot_be_enforced_costs_its_connection(loaded, eventually) -> None:
    router, load = await loaded()
    gateway = router.server.gateway
    reader, writer = await router.connect()
    before = set(gateway.clients.connections)
    writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
    await reader.readuntil(b"}")
    [port] = [writer.get_extra_info("sockname")[1]]
    [mine] = [each for each in before if each._transport.get_extra_info("peername")[1] == port]

    mine._transport, mine.deadline = Unsized(mine._transport), 0.001
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(reader.read(), 10)
    await load.more(eventually)
    assert await load.stop() == 0, load.outcomes
    assert gateway.tasks.failures == {"deadline": 1}


@pytest.mark.parametrize("where", ["page", "source"])
async def test_metrics_that_raise_cost_a_scrape(loaded, client, inject, eventually, where) -> None:
    router, load = await loaded()
    if where == "source":
        router.server.metrics.register(lambda: [][0])
    else:
        inject(Metrics, "text", 1)
    page = await client.get(f"{router.url}/metrics")
    assert page.status_code == (200 if where == "source" else 500)
    page = await client.get(f"{router.url}/metrics")
    assert page.status_code == 200
    assert "kvasir_router_task_failures_total" in page.text
    await load.more(eventually)
    assert await load.stop() == 0, load.outcomes
    assert router.server.gateway.tasks.failures


def test_a_task_is_away_for_less_than_a_second() -> None:
    assert tasks_module._MAX_BACKOFF < 1.0
