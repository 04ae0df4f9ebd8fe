"""In-flight counts that several processes share; here two columns stand for two processes."""

import pytest

from kvasir_router.discovery.specs import ReplicaSpec
from kvasir_router.fleet.replica_load import LoadReport
from kvasir_router.wire.upstream_pool import ConnectionPool
from kvasir_router.workers.shared_memory.load_table import LOOK_SECONDS, LoadTable, Others
from kvasir_router.workers.shared_memory.shared_replica import SharedReplica


class Side:
    """One process's view of a replica."""

    def __init__(self, table: LoadTable, slot: int = 3, max_in_flight: int = 4) -> None:
        column = table.allocate_column()
        assert column is not None
        self.column = column
        self.now = 0.0
        self.changes = 0
        pool = ConnectionPool("127.0.0.1", 1, connect_timeout=1, idle_timeout=1)
        self.replica = SharedReplica(
            ReplicaSpec("r0", "127.0.0.1", 1),
            pool,
            max_in_flight,
            self._changed,
            0,
            slot=slot,
            cells=table.cells(column),
        )
        self.others = Others(table, column, self._tell, clock=lambda: self.now)
        self.others.watch(slot + 1)

    def look(self) -> None:
        self.now += 2 * LOOK_SECONDS
        self.others.find()
        self.others.refresh()

    def _tell(self, slot: int, in_flight: int, credit: int) -> None:
        if slot == self.replica.slot:
            self.replica.others_have(in_flight, credit)

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
async def sides() -> tuple[LoadTable, Side, Side]:
    table = LoadTable(4)
    return table, Side(table), Side(table)


async def test_requests_of_both_count(sides) -> None:
    _, one, other = sides
    for _ in range(2):
        one.replica.acquire()
    other.replica.acquire()
    one.look()
    other.look()
    assert (one.replica.in_flight, other.replica.in_flight) == (3, 3)
    assert (one.replica.own_in_flight, other.replica.own_in_flight) == (2, 1)
    one.replica.release()
    other.look()
    assert other.replica.in_flight == 2


async def test_a_replica_is_full_with_everybodys_requests(sides) -> None:
    _, one, other = sides
    for _ in range(3):
        one.replica.acquire()
    other.look()
    assert not other.replica.full
    one.replica.acquire()
    changes = other.changes
    other.look()
    assert other.replica.full
    assert other.changes == changes + 1
    one.replica.release()
    other.look()
    assert not other.replica.full


async def test_credit_of_both_counts_until_the_engine_tells(sides) -> None:
    _, one, other = sides
    one.replica.load.give(1000)
    other.look()
    load = other.replica.load
    assert (load.credit, load.given, load.prefill_tokens) == (1000, 1000, 1000)
    load.reported(LoadReport(1, 0, 900, 0.1, 0.0))
    assert (load.credit, load.given) == (1000, 0)
    one.replica.load.take_back(1000)
    other.look()
    assert (load.credit, load.given) == (0, 0)


async def test_what_a_dead_process_had_is_counted_no_more(sides) -> None:
    table, one, other = sides
    one.replica.acquire()
    one.replica.load.give(500)
    other.look()
    assert not table.is_unused(3)
    table.free(one.column)
    other.look()
    assert (other.replica.in_flight, other.replica.load.credit) == (0, 0)
    assert table.is_unused(3)
    assert table.allocate_column() == one.column


async def test_looks_are_bounded_in_time(sides) -> None:
    _, one, other = sides
    other.look()
    one.replica.acquire()
    other.others.refresh()
    assert other.replica.in_flight == 0
    other.now += 2 * LOOK_SECONDS
    other.others.refresh()
    assert other.replica.in_flight == 1


def test_there_are_no_more_columns_than_were_made() -> None:
    table = LoadTable(2)
    assert [table.allocate_column(), table.allocate_column(), table.allocate_column()] == [
        0,
        1,
        None,
    ]
