"""Replicas without connections, and chains of blocks as prompts make them."""

from collections.abc import Callable

import pytest

from kvasir_router.discovery.specs import EngineKind, ReplicaSpec
from kvasir_router.fleet.replica import Replica
from kvasir_router.wire.upstream_pool import ConnectionPool


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def chain_of(*words: int) -> list[int]:
    """A block's number tells all the words (0 to 8) up to it, as a chained hash does."""
    chain, block = [], 1
    for word in words:
        block = block * 9 + word
        chain.append(block)
    return chain


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def make_replica() -> Callable[..., Replica]:
    """make_replica(name, engine=KVASIR)"""
    pool = ConnectionPool("127.0.0.1", 1, connect_timeout=1, idle_timeout=1)

    def make(name: str, engine: EngineKind = EngineKind.KVASIR) -> Replica:
        return Replica(ReplicaSpec(name, "127.0.0.1", 1, engine=engine), pool, 100, lambda: None)

    return make


@pytest.fixture(name="chain_of")
def chain_of_fixture() -> Callable[..., list[int]]:
    return chain_of
