"""Calls to a Redis server that keeps a store; its client costs a start 0.1 s where imported."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from kvasir_router.store_error import StoreError

CALL_SECONDS = 5.0
_CONNECT_SECONDS = 2.0
_CHECK_SECONDS = 30
"""Seconds after which an idle connection is tried before it is used."""
_Result = TypeVar("_Result")


def redis_client(url: str) -> Redis:
    """Return a client, not connected yet. Raises ValueError for a URL that names no server."""
    client: Redis = Redis.from_url(
        url,
        socket_timeout=CALL_SECONDS,
        socket_connect_timeout=_CONNECT_SECONDS,
        health_check_interval=_CHECK_SECONDS,
    )
    return client


async def redis_call(work: Awaitable[_Result]) -> _Result:
    """Await an answer, for a bounded time. Raises StoreError."""
    try:
        async with asyncio.timeout(2 * CALL_SECONDS):
            return await work
    except (RedisError, OSError, TimeoutError) as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise StoreError(f"Redis cannot be used: {reason}.") from error
