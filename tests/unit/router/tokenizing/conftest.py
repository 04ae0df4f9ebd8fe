"""Engines of another kind: an answering replica, and a publisher of block events as vLLM's."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.routers.foreign_publisher import TINY, ForeignPublisher

from kvasir.text.tokenizer import Tokenizer
from kvasir_router.discovery.specs import EngineKind, ReplicaSpec
from kvasir_router.fleet.replica import Replica
from kvasir_router.wire.upstream_pool import ConnectionPool


@pytest.fixture
def start_publisher() -> Iterator[Callable[..., ForeignPublisher]]:
    started: list[ForeignPublisher] = []

    def start(shape: str = "arrays") -> ForeignPublisher:
        started.append(ForeignPublisher(shape, len(started)))
        return started[-1]

    yield start
    for publisher in started:
        publisher.close()


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The directory of the tiny model."""
    return TINY


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(TINY)


@pytest.fixture(scope="session")
def words() -> Callable[[int, int], str]:
    """words(seed, count): the same text for the same seed."""

    def make(seed: int, count: int) -> str:
        drawn = random.Random(seed)
        return " ".join(str(drawn.randrange(9973)) for _ in range(count))

    return make


@pytest.fixture
async def make_replica() -> Callable[[str], Replica]:
    """make_replica(name): one of vLLM, without connections."""
    pool = ConnectionPool("127.0.0.1", 1, connect_timeout=1, idle_timeout=1)

    def make(name: str) -> Replica:
        spec = ReplicaSpec(name, "127.0.0.1", 1, engine=EngineKind.VLLM)
        return Replica(spec, pool, 100, lambda: None)

    return make
