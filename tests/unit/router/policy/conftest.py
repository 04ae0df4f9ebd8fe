"""Replicas whose counts are real, and queries with prompts."""

from collections.abc import Callable

import msgspec
import pytest

from kvasir_router.discovery.specs import ReplicaSpec
from kvasir_router.fleet.replica import Replica
from kvasir_router.wire.envelope import decode_envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query
from kvasir_router.wire.upstream_pool import ConnectionPool


@pytest.fixture
async def replicas(make_replicas) -> list[Replica]:
    return make_replicas(3)


@pytest.fixture
async def make_replicas() -> Callable[[int], list[Replica]]:
    def make(count: int) -> list[Replica]:
        pool = ConnectionPool("127.0.0.1", 1, connect_timeout=1, idle_timeout=1)
        return [
            Replica(ReplicaSpec(f"r{i}", "127.0.0.1", 1), pool, 10_000, lambda: None)
            for i in range(count)
        ]

    return make


@pytest.fixture
def ask() -> Callable[..., Query]:
    """ask(*contents, lines=(), **fields): a chat."""

    def make(*contents: str, lines: tuple[bytes, ...] = (), **fields: object) -> Query:
        request = Request()
        request.path = "/v1/chat/completions"
        request.lines = list(lines)
        messages = [{"role": "user", "content": content} for content in contents]
        request.body = msgspec.json.encode({"model": "m", "messages": messages, **fields})
        return Query(request, decode_envelope(request.body))

    return make
