"""Health, as probes and requests find it, over real sockets."""

import asyncio
import time
from typing import Any

import pytest

from kvasir_router.fleet.health_monitor import UNHEARD
from kvasir_router.fleet.model_identity import ModelIdentity
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.options.router_settings import Probing

CHAT = {"model": "m"}


async def test_a_replica_is_used_once_it_is_ready(
    start_replica, start_router, model_entry, client, eventually
) -> None:
    replica = await start_replica(ready=503)
    router = await start_router([model_entry("m", replica)], wait=False)
    await eventually(lambda: router.replica("m", "r0").health is Health.NOT_READY)
    assert (await client.get(f"{router.url}/ready")).status_code == 503
    response = await client.post(f"{router.url}/score", json=CHAT)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert "`m`" in response.json()["error"]["message"]
    assert replica.requests == []
    replica.ready = 200
    await eventually(lambda: router.replica("m", "r0").health is Health.READY)
    assert (await client.get(f"{router.url}/ready")).status_code == 200
    assert (await client.post(f"{router.url}/score", json=CHAT)).status_code == 200


@pytest.mark.parametrize(
    ("engine", "target"),
    [
        ("kvasir", "/ready"),
        ("kvasir-open", "/ready"),
        ("vllm", "/health"),
        ("sglang", "/health"),
        ("openai", "/v1/models"),
    ],
)
async def test_each_kind_of_engine_is_asked_what_it_knows(
    start_replica, start_router, model_entry, engine, target
) -> None:
    replica = await start_replica()
    entry = model_entry("m", replica)
    entry["replicas"][0]["engine"] = engine
    await start_router([entry])
    assert replica.probes[0].target == target


async def test_a_custom_engine_is_asked_at_its_own_paths(
    start_replica, start_router, model_entry, eventually
) -> None:
    replica = await start_replica()
    entry = model_entry("m", replica)
    own = {"engine": "openai", "ready_path": "/up", "metrics": {"running": "a", "path": "/m"}}
    entry["replicas"][0] |= own
    await start_router([entry], fleet_secret="s3cret", wait=False)
    await eventually(lambda: {"/up", "/m"} <= {probe.target for probe in replica.probes})
    asked = {probe.target for probe in replica.probes}
    assert not asked & {"/ready", "/live", "/metrics"}
    assert all(probe.header("x-kvasir-fleet-secret") is None for probe in replica.probes)


async def test_a_killed_replica_is_found_and_a_revived_one_too(
    start_replica, start_router, model_entry, client, eventually
) -> None:
    a, b = await start_replica(), await start_replica()
    router = await start_router([model_entry("m", a, b)])
    await a.stop()
    await eventually(lambda: router.replica("m", "r0").health is Health.DOWN)
    revived = await start_replica(port=a.port)
    await eventually(lambda: router.replica("m", "r0").health is Health.READY)
    for _ in range(20):
        assert (await client.post(f"{router.url}/score", json=CHAT)).status_code == 200
    assert revived.requests
    assert b.requests


async def test_a_draining_replica_gets_no_new_requests(
    start_replica, start_router, model_entry, client, eventually
) -> None:
    a, b = await start_replica(), await start_replica()
    router = await start_router([model_entry("m", a, b)])
    a.ready = 503
    await eventually(lambda: router.replica("m", "r0").health is Health.NOT_READY)
    for _ in range(10):
        await client.post(f"{router.url}/score", json=CHAT)
    assert (len(a.requests), len(b.requests)) == (0, 10)


async def test_a_replica_that_hangs_is_suspect(
    start_router, model_entry, start_replica, eventually
) -> None:
    hang = asyncio.Event()
    replica = await start_replica()
    answer = replica._answer

    async def hang_or_answer(exchange: Any) -> None:
        if hang.is_set():
            await exchange.client_left()
        await answer(exchange)

    replica._answer = hang_or_answer
    other = await start_replica()
    router = await start_router([model_entry("m", replica, other)], probing=Probing(0.1, 0.02, 0.1))
    hang.set()
    await eventually(lambda: router.replica("m", "r0").health is Health.SUSPECT)
    hang.clear()
    await eventually(lambda: router.replica("m", "r0").health is Health.READY)


async def test_time_in_which_the_router_stood_still_is_no_replicas(
    start_router, model_entry, start_replica, eventually, monkeypatch
) -> None:
    replica = await start_replica()
    seen: list[Health] = []
    observed = Replica.observed

    def noted(self: Replica, health: Health) -> None:
        seen.append(health)
        observed(self, health)

    monkeypatch.setattr(Replica, "observed", noted)
    await start_router([model_entry("m", replica)], probing=Probing(0.1, 0.02, 0.4))
    answer = replica._answer

    async def answer_after_the_loop_stood_still(exchange: Any) -> None:
        time.sleep(1.0)  # noqa: ASYNC251 - the loop, and so the router, stands still
        await asyncio.sleep(0.01)
        await answer(exchange)

    replica._answer = answer_after_the_loop_stood_still
    before = len(seen)
    await eventually(lambda: len(seen) >= before + 3)
    replica._answer = answer
    assert set(seen) == {Health.READY}


def test_one_that_only_probes_tell_of_is_found_within_a_second() -> None:
    # It may hang right after an answer: then a whole pause and a whole timeout go by
    probing = Probing()
    assert UNHEARD * probing.interval + probing.timeout / 2 <= 0.9


async def test_requests_in_flight_hear_of_a_hanging_replica_after_two_probes(
    start_router, model_entry, start_replica, eventually
) -> None:
    class QueueLimits:
        told = 0

        def replica_suspected(self, replica: Replica) -> None:
            self.told += 1

    replica, other = await start_replica(), await start_replica()
    router = await start_router([model_entry("m", replica, other)], probing=Probing(0.5, 0.02, 0.2))
    found = router.replica("m", "r0")
    waiting = QueueLimits()
    found.watchers.add(waiting)

    async def hang(exchange: Any) -> None:
        await exchange.client_left()

    replica._answer = hang
    await eventually(lambda: found.health is Health.SUSPECT)
    assert waiting.told == 0
    await eventually(lambda: waiting.told == 1)
    found.watchers.clear()


async def test_a_failed_request_asks_for_a_probe_at_once(
    start_replica, start_router, model_entry, client, eventually
) -> None:
    async def reset(exchange: Any) -> None:
        exchange.reset()

    replica = await start_replica(script=reset)
    other = await start_replica(script=reset)
    rare = Probing(interval=600, startup_interval=0.06, timeout=5)
    router = await start_router([model_entry("m", replica, other)], probing=rare)
    ready_probes = [probe for probe in replica.probes if probe.target == "/ready"]
    await client.post(f"{router.url}/score", json=CHAT)
    await eventually(lambda: len(replica.probes) > len(ready_probes) + 1)
    await eventually(lambda: router.replica("m", "r0").health is Health.READY)


async def test_probes_carry_the_secret(
    start_replica, start_router, model_entry, eventually
) -> None:
    replica = await start_replica()
    await start_router([model_entry("m", replica)], fleet_secret="s3cret")
    # The last is asked for at an interval of its own, the first two before the router is ready.
    asked = {"/ready", "/v1/models", "/metrics"}
    await eventually(lambda: {probe.target for probe in replica.probes} == asked)
    assert all(probe.header("x-kvasir-fleet-secret") == "s3cret" for probe in replica.probes)


async def test_engines_of_others_do_not_learn_the_secret(
    start_replica, start_router, model_entry, eventually
) -> None:
    replica = await start_replica()
    entry = model_entry("m", replica)
    entry["replicas"][0]["engine"] = "vllm"
    await start_router([entry], fleet_secret="s3cret")
    await eventually(lambda: "/metrics" in {probe.target for probe in replica.probes})
    assert all(probe.header("x-kvasir-fleet-secret") is None for probe in replica.probes)


async def test_a_replica_without_a_card_serves(
    start_replica, start_router, model_entry, client
) -> None:
    replica = await start_replica(max_model_len=None)
    router = await start_router([model_entry("m", replica)])
    assert (await client.post(f"{router.url}/score", json=CHAT)).status_code == 200
    [card] = (await client.get(f"{router.url}/v1/models")).json()["data"]
    assert "max_model_len" not in card


async def test_a_card_says_what_a_replica_computes(
    start_replica, start_router, model_entry
) -> None:
    computes = {"dtype": "bfloat16", "quantization": "awq", "kv_cache_dtype": "fp8"}
    card = {"root": "a/b", "revision": "abc", **computes}
    told = await start_replica(card=card)
    silent = await start_replica()
    older = await start_replica(card={**card, "kv_cache_dtype": None})
    router = await start_router([model_entry("m", told, silent, older)])
    identity = ModelIdentity("a/b", "abc", "bfloat16", "awq", "fp8")
    assert router.replica("m", "r0").serves == identity
    assert router.replica("m", "r1").serves == ModelIdentity()
    assert router.replica("m", "r2").serves == identity._replace(kv_cache_dtype="bfloat16")


@pytest.mark.parametrize(
    ("engine", "served", "health"),
    [
        ("kvasir", "other", Health.NOT_READY),
        ("vllm", "other", Health.NOT_READY),
        ("sglang", "other", Health.READY),
        ("kvasir", "m", Health.READY),
    ],
)
async def test_a_replica_that_serves_another_name_gets_no_request_that_it_would_refuse(
    start_replica, start_router, model_entry, client, eventually, engine, served, health
) -> None:
    replica = await start_replica(card={"id": served})
    entry = model_entry("m", replica)
    entry["replicas"][0]["engine"] = engine
    router = await start_router([entry], wait=False)
    await eventually(lambda: router.replica("m", "r0").health is health)
    fleet = (await client.get(f"{router.admin_url}/debug/fleet")).json()
    assert fleet["models"][0]["replicas"][0]["served_names"] == [served]
    ready = (await client.get(f"{router.url}/ready")).json()
    is_told = "replica r0 of model m serves only other" in ready.get("reason", "")
    assert is_told is (health is Health.NOT_READY)
    replica.card["id"] = "m"
    await eventually(lambda: router.replica("m", "r0").health is Health.READY)


async def test_all_full_is_429(
    start_replica, start_router, model_entry, client, eventually
) -> None:
    go_on = asyncio.Event()

    async def wait(exchange: Any) -> None:
        await go_on.wait()
        await exchange.json(200, {})

    replica = await start_replica(script=wait)
    router = await start_router([model_entry("m", replica)], max_in_flight=1)
    first = asyncio.create_task(client.post(f"{router.url}/score", json=CHAT))
    await eventually(lambda: len(replica.requests) == 1)
    response = await client.post(f"{router.url}/score", json=CHAT)
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["type"] == "rate_limit_error"
    go_on.set()
    assert (await first).status_code == 200
    assert router.in_flight() == 0


async def test_load_is_spread_by_requests_in_flight(
    start_replica, start_router, model_entry, client, eventually
) -> None:
    go_on = asyncio.Event()

    async def wait(exchange: Any) -> None:
        await go_on.wait()
        await exchange.json(200, {})

    replicas = [await start_replica(script=wait) for _ in range(3)]
    router = await start_router([model_entry("m", *replicas)])
    sent = [asyncio.create_task(client.post(f"{router.url}/score", json=CHAT)) for _ in range(12)]
    await eventually(lambda: sum(len(replica.requests) for replica in replicas) == 12)
    assert [len(replica.requests) for replica in replicas] == [4, 4, 4]
    assert router.in_flight() == 12
    go_on.set()
    await asyncio.gather(*sent)
    assert router.in_flight() == 0
