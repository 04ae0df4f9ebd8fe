"""LoRA adapters in front of real sockets: who is asked, and what is said where nobody holds one."""

import asyncio
import json

import pytest
from support.forms import AUDIO, TYPE, form, part

from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key
from kvasir_router.options.router_settings import QueueLimits


async def named(exchange) -> None:
    await exchange.json(200, {"model": json.loads(exchange.request.body)["model"]})


def entry(*replicas, held, adapters=("sql", "chat"), engine="vllm"):
    return {
        "name": "base",
        "aliases": ["alias"],
        "adapters": list(adapters),
        "replicas": [
            {"id": f"r{i}", "url": each.url, "engine": engine, "adapters": list(own)}
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


async def test_one_that_nobody_holds_is_answered_by_a_fallback(start_router, client, pair) -> None:
    one, other = pair
    router = await start_router(
        [
            {**entry(one, held=((),)), "fallbacks": ["other"]},
            {**entry(other, held=((),), adapters=()), "name": "other", "aliases": []},
        ]
    )
    answer = await client.post(f"{router.url}/v1/completions", json={"model": "sql"})
    assert (answer.status_code, answer.json()) == (200, {"model": "other"})
    assert answer.headers["x-kvasir-model"] == "other"
    counted = await router.metric("fallbacks_total", model="base", reason="no_replica")
    assert (counted, one.requests) == (1, [])


async def test_an_adapter_whose_replica_is_full_waits_and_holds_up_nobody(
    start_router, client, start_replica, eventually
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

    waiting = [asyncio.create_task(ask("sql")) for _ in range(80)]
    await asyncio.wait_for(arrived.wait(), 20)
    queue, model = router.server.gateway.queue, router.server.fleet.models["base"]
    await eventually(lambda: queue.waiting(model) == 79)
    answers = await asyncio.gather(*(ask("base") for _ in range(3)))
    assert [each.status_code for each in answers] == [200] * 3
    assert len(other.requests) == 3
    going.set()
    assert {(await each).status_code for each in waiting} == {200}
    assert len(holder.requests) == 80


@pytest.fixture
async def asked(start_router, start_replica, client, tmp_path):
    """asked(engine): post a body with a key that may use the base model alone, to a replica that
    holds an adapter; return the answer and the replica."""

    async def start(engine: str):
        key = ApiKey(id="k", hash=hash_key(b"kv-base"), tenant="t", models=("base",))
        keys = tmp_path / "keys.yaml"
        keys.write_bytes(dump_keys(KeyFile(keys=(key,))))
        replica = await start_replica(script=named)
        router = await start_router(
            [entry(replica, held=(("sql",),), engine=engine)], keys_file=keys, fleet_secret="s" * 32
        )

        async def post(path: str, body: bytes, kind: str = "application/json"):
            headers = {"Authorization": "Bearer kv-base", "Content-Type": kind}
            return await client.post(router.url + path, content=body, headers=headers)

        return post, replica

    return start


CHOOSING = {
    "sglang": b'"lora_path": "sql"',
    "several": b'"lora_path": ["sql"]',
    "twice": b'"lora_path": null, "lora_path": "sql"',
    "escaped": rb'"lora\u005fpath": "sql"',
    "long": b'"lora_path": ["sql",' + b" " * 2000 + b'"sql"]',
    "tensorrt-llm": b'"lora_request": {"lora_name": "sql", "lora_int_id": 1, "lora_path": "/sql"}',
    "llama.cpp": b'"lora": [{"id": 0, "scale": 1.0}]',
    "mlx-lm": b'"adapters": "sql"',
}


@pytest.mark.parametrize("engine", ["sglang", "vllm", "openai", "kvasir"])
@pytest.mark.parametrize("size", ["short", "bracketed", "scanned"])
async def test_no_field_but_model_chooses_an_adapter(asked, engine, size) -> None:
    post, replica = await asked(engine)
    more = {"short": b"", "bracketed": b"[]," * 5000, "scanned": b'"%b",' % (b"x" * 100_000)}[size]
    for name, field in CHOOSING.items():
        body = b'{"model": "base", %b, "prompt": [%b""]}' % (field, more)
        answer = await post("/v1/completions", body)
        assert answer.status_code == 400, name
        error = answer.json()["error"]
        assert error["code"] == "invalid_body"
        if name == "escaped" and size != "short":
            continue  # no name of a long body may have escapes
        assert f"`{error['param']}` is " in error["message"]
        assert "put the adapter's name there" in error["message"]
    assert replica.requests == []
    without = b'{"model": "base", "lora_path": null, "prompt": [%b""]}' % more
    assert (await post("/v1/completions", without)).status_code == 200


async def test_the_refusal_has_the_form_of_the_protocol(asked) -> None:
    post, replica = await asked("sglang")
    for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"):
        answer = await post(path, b'{"model": "base", "lora_path": "sql"}')
        assert answer.status_code == 400, path
        assert ("type" in answer.json()) == (path == "/v1/messages")
        assert answer.json()["error"]["message"] == (
            '`lora_path` is "sql": LoRA adapters are chosen by `model` alone; put the adapter\'s '
            "name there and leave `lora_path` out."
        )
    assert replica.requests == []


async def test_no_field_of_a_form_does_either(asked) -> None:
    post, replica = await asked("openai")
    for value in (b"{}", b"x" * 5000):
        body = form(AUDIO, part("model", b"base"), part("lora", value))
        answer = await post("/v1/images/edits", body, TYPE.decode())
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "lora"
    assert replica.requests == []
