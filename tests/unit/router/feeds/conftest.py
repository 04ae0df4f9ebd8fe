"""An index that only writes down, and replicas to tell it of."""

from collections.abc import Callable

import pytest

from kvasir.wire.kv_events import BlockRemoved, BlockStored
from kvasir_router.discovery.specs import ReplicaSpec
from kvasir_router.fleet.replica import Replica
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.wire.upstream_pool import ConnectionPool


class Blocks:
    """A BlockSink: the blocks that one replica is believed to have, and what led there."""

    def __init__(self) -> None:
        self.held: set[bytes | int] = set()
        self.calls = 0
        self.clears = 0
        self.reports: list[PromptReport] = []

    def stored(self, replica: Replica, event: BlockStored) -> None:
        self.calls += 1
        self.held.update(event.block_hashes)

    def removed(self, replica: Replica, event: BlockRemoved) -> None:
        self.calls += 1
        self.held.difference_update(event.block_hashes)

    def cleared(self, replica: Replica) -> None:
        self.clears += 1
        self.held.clear()

    def learned(self, report: PromptReport) -> None:
        self.reports.append(report)


@pytest.fixture
def blocks() -> Blocks:
    return Blocks()


@pytest.fixture
async def make_replica() -> Callable[..., Replica]:
    def make(port: int = 1, **spec: object) -> Replica:
        pool = ConnectionPool("127.0.0.1", port, connect_timeout=1, idle_timeout=1)
        return Replica(ReplicaSpec("r0", "127.0.0.1", port, **spec), pool, 10, lambda: None)  # type: ignore[arg-type]

    return make
