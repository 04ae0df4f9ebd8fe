"""Budgets and spend over restarts, and several routers, from a client's side."""

import pytest

from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key
from kvasir_router.options.spend_settings import SpendSettings

BODY = {"model": "m", "messages": [], "max_tokens": 10}
BEARER = {"Authorization": "Bearer kv-a"}


@pytest.fixture
async def start(start_replica, start_router, model_entry, tmp_path):
    """Start a router whose requests use 500 tokens each of a key's 1,000 a day."""
    keys = tmp_path / "keys.yaml"
    key = ApiKey(id="a", hash=hash_key(b"kv-a"), tenant="t", tokens_per_day=1000)
    keys.write_bytes(dump_keys(KeyFile(keys=(key,))))

    async def answer(exchange) -> None:
        await exchange.json(200, {"usage": {"prompt_tokens": 200, "completion_tokens": 300}})

    replica = await start_replica(script=answer)

    async def start(**options):
        options.setdefault("spend", SpendSettings(f"sqlite:///{tmp_path}/spend.db"))
        return await start_router([model_entry("m", replica)], keys_file=keys, **options)

    return start


async def ask(client, router) -> int:
    url = f"{router.url}/v1/chat/completions"
    return (await client.post(url, json=BODY, headers=BEARER)).status_code


async def test_a_restart_begins_no_new_day(start, client) -> None:
    first = await start()
    assert await ask(client, first) == 200
    await first.server.spend.sync()
    second = await start()
    assert [await ask(client, second) for _ in range(2)] == [200, 429]


async def test_several_routers_share_one_budget(start, client) -> None:
    """Which is not divided, as it is without a store."""
    routers = [await start(routers=2) for _ in range(2)]
    for router in routers:
        assert await ask(client, router) == 200
        await router.server.spend.sync()
    await routers[0].server.spend.sync()
    assert [await ask(client, router) for router in routers] == [429, 429]
    alone = await start(routers=2, spend=SpendSettings())
    assert [await ask(client, alone) for _ in range(2)] == [200, 429]


async def test_spend_is_a_table_and_a_metric(start, client) -> None:
    router = await start()
    await ask(client, router)
    url = f"{router.admin_url}/spend"
    table = (await client.get(url)).text.splitlines()
    assert table[0] == (
        "day,key,tenant,model,requests,prompt_tokens,cached_tokens,completion_tokens"
    )
    assert table[1].partition(",")[2] == "a,t,m,1,200,0,300"
    day = table[1].partition(",")[0]
    assert (await client.get(url, params={"from": day, "to": day})).text.splitlines() == table
    old = await client.get(url, params={"from": "2020-01-01", "to": "2020-01-31"})
    assert old.text.splitlines() == table[:1]
    labels = {"key": "a", "tenant": "t", "kind": "completion"}
    assert await router.metric("key_tokens_total", **labels) == 300


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"from": "yesterday"}, "from 'yesterday' is no date"),
        ({"to": "1969-12-31"}, "is no date"),
        ({"from": "2026-01-02", "to": "2026-01-01"}, "must be 1 to 400 days"),
        ({"from": "2020-01-01", "to": "2026-01-01"}, "must be 1 to 400 days"),
    ],
)
async def test_other_days_are_refused(start, client, params, said) -> None:
    router = await start()
    answer = await client.get(f"{router.admin_url}/spend", params=params)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


async def test_too_much_and_nothing_are_told(start, client, monkeypatch) -> None:
    router = await start()
    await ask(client, router)
    monkeypatch.setattr("kvasir_router.admin.spend_report.MAX_ROWS", 0)
    answer = await client.get(f"{router.admin_url}/spend")
    assert (answer.status_code, "ask for fewer days" in answer.text) == (400, True)
    await router.server.spend.store.close()
    away = await client.get(f"{router.admin_url}/spend")
    assert away.status_code == 503
    without = await start(spend=SpendSettings())
    answer = await client.get(f"{without.admin_url}/spend")
    assert (answer.status_code, "--spend-store" in answer.text) == (404, True)
