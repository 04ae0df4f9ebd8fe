"""Spend in Redis: its age, and a server that is away."""

import pytest
from redis.asyncio import Redis

from kvasir.cli.local.ports import free_ports
from kvasir_router.spend.redis_spend import RedisSpend
from kvasir_router.spend.spend_store import Spend, SpendBatch, Spender
from kvasir_router.store_error import StoreError

BATCH = SpendBatch("r", "r:w", 1, {Spender(20_000, "a", "t", "m"): Spend(1, 2, 0, 3)})


async def test_everything_has_an_end_and_one_slot(redis_server) -> None:
    url = redis_server()
    store = RedisSpend(url, 3)
    await store.open()
    await store.add(BATCH)
    redis = Redis.from_url(url, decode_responses=True)
    keys = {str(key) for key in await redis.keys("*")}
    assert len(keys) == 4
    assert all(key.startswith("kvasir:{spend}:") for key in keys)
    ends = [await redis.ttl(key) for key in sorted(keys)]
    assert all(0 < end <= 4 * 86_400 for end in ends)
    await redis.aclose()
    await store.close()


async def test_a_server_that_is_away_is_told_and_tried_again(redis_server) -> None:
    [free_port] = free_ports(1)
    store = RedisSpend(f"redis://127.0.0.1:{free_port}/0", 3)
    await store.open()
    with pytest.raises(StoreError, match="Redis cannot be used"):
        await store.add(BATCH)
    redis_server(port=free_port)
    await store.add(BATCH)
    assert await store.elsewhere(20_000, "x") == {"a": 5}
    await store.close()
