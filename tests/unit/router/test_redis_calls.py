"""Calls to Redis end with a StoreError where the server is not there, or says nothing."""

import asyncio

import pytest

from kvasir.cli.local.ports import free_ports
from kvasir_router import redis_calls
from kvasir_router.redis_calls import redis_call, redis_client
from kvasir_router.store_error import StoreError


def test_a_url_of_no_server_is_refused() -> None:
    with pytest.raises(ValueError, match="Redis URL"):
        redis_client("file:///somewhere")


async def test_a_server_that_is_not_there_is_told() -> None:
    (port,) = free_ports(1)
    client = redis_client(f"redis://127.0.0.1:{port}")
    with pytest.raises(StoreError, match=r"Redis cannot be used: Error .* connecting"):
        await redis_call(client.ping())
    await client.aclose()


async def test_an_answer_that_does_not_come_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_calls, "CALL_SECONDS", 0.0)
    with pytest.raises(StoreError, match=r"Redis cannot be used: TimeoutError\."):
        await redis_call(asyncio.Event().wait())
