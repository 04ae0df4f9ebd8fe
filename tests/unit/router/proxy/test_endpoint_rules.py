"""What the table of endpoints forbids does not happen to an engine."""

import asyncio
import json

import pytest
from support.router import model_entry as own_entry

from kvasir_router.fleet.replica import Health
from kvasir_router.options.failover_settings import Failover
from kvasir_router.options.router_settings import Probing
from kvasir_router.wire.endpoints import ENDPOINTS

pytestmark = pytest.mark.slow

BODY = b'{"model": "m", "input": "x"}'
ADMINISTRATION = [
    *("sleep", "wake_up", "is_sleeping", "load_lora_adapter", "unload_lora_adapter"),
    *("reset_prefix_cache", "reset_mm_cache", "collective_rpc", "server_info", "start_profile"),
    *("flush_cache", "update_weights_from_disk", "release_memory_occupation", "abort_request"),
    *("load", "version", "invocations", "generate", "files", "batches", "scale_elastic_ep"),
]
METHODS = (b"POST", b"GET", b"HEAD")
SPELLINGS = {
    "plain": b"/%b",
    "below v1": b"/v1/%b",
    "with a query": b"/v1/%b?model=m",
    "with a slash behind": b"/v1/%b/",
    "with a parameter": b"/v1/%b;x",
    "two slashes before": b"//%b",
    "two slashes within": b"/v1//%b",
    "dot segment": b"/v1/./%b",
    "dot segments": b"/v1/completions/../%b",
    "encoded dots": b"/v1/%%2e%%2e/%b",
    "encoded slash": b"/v1/..%%2f%b",
    "both encoded": b"/v1/%%2E%%2e%%2F%b",
    "encoded behind a route": b"/v1/completions%%2f..%%2f%b",
    "encoded below a prefix": b"/v1/models/%%2e%%2e%%2f%b",
    "encoded twice": b"/v1/%%252e%%252e%%252f%b",
    "backslashes": b"/v1/..\\%b",
    "encoded backslashes": b"/v1/..%%5c%b",
    "encoded NUL": b"/v1/%b%%00",
    "behind a route's name": b"/v1/completions/%b",
}


@pytest.mark.parametrize("name", ADMINISTRATION)
async def test_an_engine_s_administration_is_reached_by_no_spelling(one, name: str) -> None:
    router, replica = await one()
    encoded = f"%{ord(name[0]):02x}{name[1:]}"
    targets = [path % part.encode() for path in SPELLINGS.values() for part in (name, encoded)]
    head = b"%b %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    requests = [head % (how, each, len(BODY), BODY) for each in targets for how in METHODS]
    answers = await asyncio.gather(*(router.exchange(each) for each in requests))
    for request, answer in zip(requests, answers, strict=True):
        wrong_method = request.startswith(b"POST /v1/models/")
        assert int(answer[9:12]) in ((405, 400) if wrong_method else (404, 400)), request
    assert replica.requests == []
    own = {"/ready", "/v1/models", "/metrics"}
    assert {probe.target for probe in replica.probes} <= own


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/sleep", "/v1/files", "/nothing"])
async def test_an_unknown_path_is_named_with_those_there_are(one, client, path: str) -> None:
    router, replica = await one()
    response = await client.post(router.url + path, content=BODY)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (
        *(404, "not_found_error", "not_found"),
    )
    assert error["message"].startswith(f"There is no route POST {path}. Those here: ")
    assert all(row.path in error["message"] for row in ENDPOINTS)
    assert replica.requests == []


@pytest.mark.parametrize("path", ["/metrics", "/health", "/ready", "/v1/models", "/v1/models/m"])
async def test_what_the_router_answers_is_not_forwarded(one, client, path: str) -> None:
    router, replica = await one()
    response = await client.post(router.url + path, content=BODY)
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
    assert response.json()["error"]["code"] == "method_not_allowed"
    assert replica.requests == []


async def test_responses_of_an_engine_that_keeps_none_are_retried(two, scripts, client) -> None:
    router, a, b = await two(scripts.reset, scripts.ok, policy="round_robin")
    response = await client.post(f"{router.url}/v1/responses", content=BODY)
    assert response.json() == {"ok": True}
    assert (len(a.requests), len(b.requests)) == (1, 1)


async def test_responses_of_a_draining_replica_move(two, scripts, client) -> None:
    draining = scripts.status(503, code="draining", message="ending")
    router, a, b = await two(draining, scripts.ok, policy="round_robin", fleet_secret="s")
    response = await client.post(f"{router.url}/v1/responses", content=BODY)
    assert response.json() == {"ok": True}
    assert (len(a.requests), len(b.requests)) == (1, 1)


class TestNotRetried:
    """Of `/v1/responses`, which an engine of others may store, one replica gets to see each
    request."""

    @pytest.fixture
    def model_entry(self):
        def entry(name: str, *replicas):
            made = own_entry(name, *replicas)
            for each in made["replicas"]:
                each["engine"] = "openai"
            return made

        return entry

    @pytest.mark.parametrize("number", [429, 500, 502, 503, 504])
    async def test_an_error_is_passed_on(self, two, scripts, client, number: int) -> None:
        router, a, b = await two(scripts.status(number), scripts.ok, policy="round_robin")
        response = await client.post(f"{router.url}/v1/responses", content=BODY)
        assert (response.status_code, response.json()) == (number, {"from": number})
        assert (len(a.requests), len(b.requests)) == (1, 0)

    async def test_a_death_ends_it(self, two, scripts, client) -> None:
        router, a, b = await two(scripts.reset, scripts.ok, policy="round_robin")
        response = await client.post(f"{router.url}/v1/responses", content=BODY)
        assert (response.status_code, response.json()["error"]["code"]) == (502, "replica_failed")
        assert (len(a.requests), len(b.requests)) == (1, 0)

    async def test_a_death_ends_it_where_there_is_no_other(self, one, scripts, client) -> None:
        router, replica = await one(scripts.reset)
        response = await client.post(f"{router.url}/v1/responses", content=BODY)
        assert response.status_code == 502
        assert len(replica.requests) == 1

    async def test_it_comes_over_a_connection_of_its_own(self, one, client) -> None:
        """A kept one may end as the request is sent, which would then have to be sent again."""
        writers = []

        async def answer(exchange) -> None:
            writers.append(exchange.writer)
            await exchange.json(200, {})

        router, _ = await one(answer)
        for _ in range(3):
            await client.post(f"{router.url}/v1/responses", content=BODY)
        assert len(set(writers)) == 3

    async def test_what_was_never_sent_moves(self, two, scripts, client) -> None:
        router, a, _ = await two(
            scripts.ok, scripts.ok, policy="round_robin", probing=Probing(600, 0.02, 0.5)
        )
        await a.stop()
        response = await client.post(f"{router.url}/v1/responses", content=BODY)
        assert response.json() == {"ok": True}
        assert await router.metric("retries_total", reason="refused") == 1

    async def test_a_silent_replica_keeps_it(self, two, scripts, client, eventually) -> None:
        async def when_told(exchange) -> None:
            await told.wait()
            await scripts.ok(exchange)

        told = asyncio.Event()
        router, a, b = await two(
            when_told, scripts.ok, policy="round_robin", probing=Probing(600, 600, 600)
        )
        asked = asyncio.create_task(client.post(f"{router.url}/v1/responses", content=BODY))
        await eventually(lambda: bool(a.requests))
        for _ in range(2):  # silent, and still so when it was probed
            router.replica("m", "r0").observed(Health.SUSPECT)
        told.set()
        assert (await asked).json() == {"ok": True}
        assert (len(a.requests), len(b.requests)) == (1, 0)

    async def test_it_is_not_hedged(self, two, scripts, client) -> None:
        router, a, b = await two(
            scripts.after(0.2, scripts.ok),
            scripts.ok,
            policy="round_robin",
            failover=Failover(hedging=True),
        )
        model = router.server.fleet.models["m"]
        for _ in range(1000):
            model.hedge_delay.answered(0.001)
        assert model.hedge_delay.seconds is not None
        response = await client.post(f"{router.url}/v1/responses", content=BODY)
        assert response.status_code == 200
        assert (len(a.requests), len(b.requests)) == (1, 0)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/messages", "/v1/responses"])
async def test_only_completions_are_asked_for_their_usage(one, client, path: str) -> None:
    router, replica = await one()
    body = json.dumps({"model": "m", "stream": True}).encode()
    await client.post(router.url + path, content=body)
    await client.post(f"{router.url}/v1/completions", content=body)
    assert replica.requests[0].body == body
    assert b"include_usage" in replica.requests[1].body
