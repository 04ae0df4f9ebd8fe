"""Responses in Redis, for any number of routers."""

import asyncio
import time
from hashlib import blake2b
from typing import Any

import structlog

from kvasir_router.kept_responses.packed_response import pack, unpack
from kvasir_router.kept_responses.response_store import (
    KeptResponse,
    ResponseStore,
    StoreError,
    StoreLimits,
)
from kvasir_router.redis_calls import redis_call, redis_client

_log = structlog.get_logger("kvasir_router.responses")


class RedisResponses(ResponseStore):
    """A key for each response, which Redis itself forgets, and for each owner a set of ids by age.

    Both are in one slot of a Redis Cluster: the owner's digest is their hash tag. Bytes are bounded
    by Redis' own `maxmemory`. A server that is away is told of and tried again by the next call:
    the router serves all else.
    """

    def __init__(self, url: str, limits: StoreLimits) -> None:
        """Raises ValueError for a URL that names no server."""
        self._limits = limits
        self._redis = redis_client(url)

    async def open(self) -> None:
        """See ResponseStore."""
        try:
            await redis_call(self._redis.ping())
        except StoreError as error:
            _log.error("responses can neither be kept nor found now", reason=str(error))

    async def put(self, kept: KeptResponse) -> None:
        """See ResponseStore."""
        content = await asyncio.to_thread(pack, kept.response, kept.items)
        now, seconds = time.time(), max(1, int(self._limits.seconds))
        ids = _ids(kept.owner)
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.set(_key(kept.owner, kept.id), content, ex=seconds)
            pipeline.zadd(ids, {kept.id: now})
            pipeline.expire(ids, seconds)
            pipeline.zremrangebyscore(ids, "-inf", now - seconds)
            pipeline.zcard(ids)
            *_, count = await redis_call(pipeline.execute())
        if count > self._limits.per_key:
            await self._forget_oldest(kept.owner, count - self._limits.per_key)

    async def find(self, owner: str, response_id: str) -> KeptResponse | None:
        """See ResponseStore."""
        content = await redis_call(self._redis.get(_key(owner, response_id)))
        if not isinstance(content, bytes):
            return None
        try:
            response, items = await asyncio.to_thread(unpack, content)
        except ValueError as error:
            raise StoreError(str(error)) from error
        return KeptResponse(owner, response_id, response, items)

    async def delete(self, owner: str, response_id: str) -> bool:
        """See ResponseStore."""
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.delete(_key(owner, response_id))
            pipeline.zrem(_ids(owner), response_id)
            gone, _ = await redis_call(pipeline.execute())
        return bool(gone)

    async def close(self) -> None:
        """See ResponseStore."""
        await self._redis.aclose()

    async def _forget_oldest(self, owner: str, count: int) -> None:
        oldest: Any = await redis_call(self._redis.zpopmin(_ids(owner), count))
        if oldest:
            keys = [_key(owner, response_id.decode()) for response_id, _ in oldest]
            await redis_call(self._redis.unlink(*keys))


def _ids(owner: str) -> str:
    return f"kvasir:responses:{{{blake2b(owner.encode(), digest_size=16).hexdigest()}}}"


def _key(owner: str, response_id: str) -> str:
    return f"{_ids(owner)}:{response_id}"
