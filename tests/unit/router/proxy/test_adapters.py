"""LoRA adapters in front of real sockets: who is asked, and what is said where nobody holds one."""

import asyncio
import json

import pytest

from kvasir_router.options.router_settings import QueueLimits


async def named(exchange) -> None:
    await exchange.json(200, {"model": json.loads(exchange.request.body)["model"]})


def entry(*replicas, held, adapters=("sql", "chat")):
    return {
        "name": "base",
        "aliases": ["alias"],
        "adapters": list(adapters),
        "replicas": [
            {"id": f"r{i}", "url": each.url, "engine": "vllm", "adapters": list(own)}
            for i, (each, own) in enumerate(zip(replicas, held, strict=True))
        ],
    }


@pytest.fixture
async def pair(start_replica):
    return await start_replica(script=named), await start_replica(script=named)


async def test_requests_go_to_the_replica_that_holds_the_adapter(
    start_router, client, pair
) -> None:
    router = await start_router([entry(*pair, held=(("sql",), ("chat",)))])
    for _ in range(4):
        for name in ("sql", "chat"):
            answer = await client.post(f"{router.url}/v1/completions", json={"model": name})
            assert answer.json() == {"model": name}
    assert [{json.loads(request.body)["model"] for request in each.requests} for each in pair] == [
        {"sql"},
        {"chat"},
    ]
    assert await router.metric("requests_total", model="base", code="200") == 8
    assert await router.metric("requests_total", model="sql") == 0, "no label of an adapter's"


async def test_the_list_has_adapters_with_their_parent(start_router, client, pair) -> None:
    router = await start_router([entry(*pair, held=(("sql",), ()))])
    cards = (await client.get(f"{router.url}/v1/models")).json()["data"]
    found = {each["id"]: (each["root"], each.get("parent")) for each in cards}
    assert found == {
        "base": ("base", None),
        "alias": ("base", None),
        "sql": ("sql", "base"),
        "chat": ("chat", "base"),
    }
    card = (await client.get(f"{router.url}/v1/models/sql")).json()
    assert (card["id"], card["parent"]) == ("sql", "base")


async def test_one_that_nobody_holds_yet_is_503_and_one_that_is_not_there_404(
    start_router, client, pair
) -> None:
    router = await start_router([entry(*pair, held=(("sql",), ()))])
    answer = await client.post(f"{router.url}/v1/completions", json={"model": "chat"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("adapter_not_loaded", "model")
    assert "`chat`" in error["message"]
    answer = await client.post(f"{router.url}/v1/completions", json={"model": "nothing"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "`chat`" in answer.json()["error"]["message"]
    await asyncio.gather(
        *(client.post(f"{router.url}/v1/completions", json={"model": "base"}) for _ in range(4))
    )
    assert sum(len(each.requests) for each in pair) == 4


async def test_an_adapter_whose_replica_is_full_waits_and_holds_up_nobody(
    start_router, client, start_replica
) -> None:
    going = asyncio.Event()

    arrived = asyncio.Event()

    async def slow(exchange) -> None:
        arrived.set()
        await going.wait()
        await named(exchange)

    holder, other = await start_replica(script=slow), await start_replica(script=named)
    router = await start_router(
        [entry(holder, other, held=(("sql",), ()))],
        max_in_flight=1,
        waiting=QueueLimits(timeout=30, hold=30),
    )

    def ask(name: str):
        body = {"model": name, "prompt": "x"}
        return client.post(f"{router.url}/v1/completions", json=body)

    first, second = asyncio.create_task(ask("sql")), asyncio.create_task(ask("sql"))
    await asyncio.wait_for(arrived.wait(), 20)
    answers = await asyncio.gather(*(ask("base") for _ in range(3)))
    assert [each.status_code for each in answers] == [200] * 3
    assert len(other.requests) == 3
    going.set()
    assert [(await each).status_code for each in (first, second)] == [200, 200]
    assert len(holder.requests) == 2
