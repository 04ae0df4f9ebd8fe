"""Stores of responses that are closed after a test."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.redis_server import redis_server

from kvasir_router.kept_responses.redis_responses import RedisResponses
from kvasir_router.kept_responses.response_store import KeptResponse, StoreLimits
from kvasir_router.kept_responses.sqlite_responses import SqliteResponses

__all__ = ["redis_server"]

LIMITS = {"seconds": 3600.0, "total_bytes": 2**20, "per_key": 100}


@pytest.fixture
async def open_file(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """open_file(**limits): the store in this test's file."""
    opened: list[SqliteResponses] = []

    async def start(**limits: Any) -> SqliteResponses:
        store = SqliteResponses(tmp_path / "responses", StoreLimits(**{**LIMITS, **limits}))
        await store.open()
        opened.append(store)
        return store

    yield start
    for store in opened:
        await store.close()


@pytest.fixture
def kept() -> Callable[..., KeptResponse]:
    """kept(owner, id, **fields): a response."""

    def make(owner: str, response_id: str, **fields: Any) -> KeptResponse:
        made = {"response": b'{"id":"x"}', "items": b"[]", **fields}
        return KeptResponse(owner, response_id, **made)

    return make


@pytest.fixture
async def open_redis() -> AsyncIterator[Callable[..., Any]]:
    """open_redis(url, **limits): a router's store on that server."""
    opened: list[RedisResponses] = []

    async def start(url: str, **limits: Any) -> RedisResponses:
        store = RedisResponses(url, StoreLimits(**{**LIMITS, **limits}))
        opened.append(store)
        await store.open()
        return store

    yield start
    for store in opened:
        await store.close()
