"""Responses in a real Redis: whose they are, what goes, and what happens while it is away."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from kvasir_router.kept_responses.response_store import KeptResponse, StoreError

pytestmark = pytest.mark.slow
Make = Callable[..., KeptResponse]


async def ids(store: Any, owner: str, *wanted: str) -> list[str]:
    return [each for each in wanted if await store.find(owner, each) is not None]


async def test_a_response_is_its_owners_alone_and_every_routers(
    redis_server: Any, open_redis: Any, kept: Make
) -> None:
    url = redis_server()
    one, other = await open_redis(url), await open_redis(url)
    await one.put(kept("a", "r1", response=b'{"id":"r1"}', items=b'["x"]'))
    found = await other.find("a", "r1")
    assert (found.id, found.response, found.items) == ("r1", b'{"id":"r1"}', b'["x"]')
    assert await other.find("b", "r1") is None
    assert await other.delete("b", "r1") is False
    assert await other.delete("a", "r1") is True
    assert await one.find("a", "r1") is None


async def test_the_oldest_of_a_key_go_first(redis_server: Any, open_redis: Any, kept: Make) -> None:
    store = await open_redis(redis_server(), per_key=2)
    await store.put(kept("b", "r0"))
    for n in range(4):
        await store.put(kept("a", f"r{n}"))
    assert await ids(store, "a", "r0", "r1", "r2", "r3") == ["r2", "r3"]
    assert await ids(store, "b", "r0") == ["r0"]
    assert await store._redis.dbsize() == 5  # no more than three responses and two sets


async def test_redis_forgets_after_the_time(redis_server: Any, open_redis: Any, kept: Make) -> None:
    store = await open_redis(redis_server(), seconds=7200.0)
    await store.put(kept("a", "r1"))
    keys = [key async for key in store._redis.scan_iter()]
    assert len(keys) == 2
    for key in keys:
        assert 7100 < await store._redis.ttl(key) <= 7200


async def test_a_server_that_is_full_or_away_is_an_error(
    redis_server: Any, open_redis: Any, kept: Make
) -> None:
    full = await open_redis(redis_server("--maxmemory", "1mb"))
    with pytest.raises(StoreError, match=r"Redis cannot be used: .*OOM|maxmemory"):
        await full.put(kept("a", "r1", response=os.urandom(2**21)))
    away = await open_redis("redis://127.0.0.1:1/0")
    for call in (away.find("a", "r1"), away.delete("a", "r1"), away.put(kept("a", "r1"))):
        with pytest.raises(StoreError, match="Redis cannot be used"):
            await call


async def test_a_server_that_comes_back_is_used_again(
    redis_server: Any, open_redis: Any, kept: Make
) -> None:
    url = redis_server()
    store = await open_redis(url)
    await store.put(kept("a", "r1"))
    await store._redis.shutdown(nosave=True)
    with pytest.raises(StoreError):
        await store.find("a", "r1")
    redis_server(port=int(url.rpartition(":")[2].removesuffix("/0")))
    await store.put(kept("a", "r2"))
    assert await ids(store, "a", "r1", "r2") == ["r2"]


async def test_what_others_wrote_is_an_error(
    redis_server: Any, open_redis: Any, kept: Make
) -> None:
    store = await open_redis(redis_server())
    await store.put(kept("a", "r1"))
    [key] = [key async for key in store._redis.scan_iter("*:r1")]
    await store._redis.set(key, b"x")
    with pytest.raises(StoreError, match="cannot be read"):
        await store.find("a", "r1")


async def test_many_at_once(redis_server: Any, open_redis: Any, kept: Make) -> None:
    url = redis_server()
    stores = [await open_redis(url) for _ in range(2)]
    await asyncio.gather(*(stores[n % 2].put(kept("a", f"r{n}")) for n in range(60)))
    assert len(await ids(stores[0], "a", *(f"r{n}" for n in range(60)))) == 60
