"""Stores of spend that are closed after a test: each test runs with a file and with Redis."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.redis_server import redis_server

from kvasir_router.spend.redis_spend import RedisSpend
from kvasir_router.spend.spend_store import SpendStore
from kvasir_router.spend.sqlite_spend import SqliteSpend

__all__ = ["redis_server"]


@pytest.fixture(params=["sqlite", "redis"])
async def open_store(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: Callable[..., str]
) -> AsyncIterator[Callable[..., Any]]:
    """open_store(days): a connection to this test's store."""
    opened: list[SpendStore] = []
    url = redis_server() if request.param == "redis" else ""

    async def start(days: int = 10) -> SpendStore:
        store = RedisSpend(url, days) if url else SqliteSpend(tmp_path / "spend.db", days)
        await store.open()
        opened.append(store)
        return store

    yield start
    for store in opened:
        await store.close()
