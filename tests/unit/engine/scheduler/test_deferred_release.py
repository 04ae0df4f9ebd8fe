from __future__ import annotations

import pytest

from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.kv.manager import KVManager
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler.deferred_release import DeferredReleases
from kvasir_engine.scheduler.row_table import RowTable
from kvasir_engine.scheduler.sequence import Sequence, SequenceState, make_sequences


class Fixture:
    """One pool of 10 blocks, and sequences that hold some of them."""

    def __init__(self) -> None:
        self.kv = KVManager([KVGroupSpec((0,), 4, None)], [11])
        self.rows = RowTable(4, 17)
        self.requeued: list[Sequence] = []
        self.releases = DeferredReleases(self.kv, self.rows, self.requeued.append)

    def running(self, blocks: int, last_step: int) -> Sequence:
        request = EngineRequest("r", 0, [1, 2], SamplingParams())
        sequence = make_sequences(request, order=0, seed=0, max_model_len=16)
        row = self.rows.acquire(sequence)
        self.rows.last_step[row] = last_step
        sequence.state, sequence.tables = SequenceState.RUNNING, self.kv.new_tables()
        self.kv.append(sequence.tables, blocks)
        return sequence

    @property
    def free(self) -> tuple[int, int]:
        return self.kv.num_available, self.rows.num_free


@pytest.fixture
def some() -> Fixture:
    return Fixture()


def test_rows_and_blocks_return_with_the_last_step_that_names_them(some: Fixture) -> None:
    sequence = some.running(3, last_step=5)
    some.releases.add(sequence)
    some.releases.add(sequence)  # leaving twice is leaving once
    some.releases.retire(4)
    assert (some.free, some.releases.pending, sequence.state) == (
        (7, 3),
        True,
        SequenceState.LEAVING,
    )
    some.releases.retire(5)
    assert (some.free, some.releases.pending, sequence.state) == (
        (10, 4),
        False,
        SequenceState.GONE,
    )


def test_what_no_step_in_flight_names_returns_at_once(some: Fixture) -> None:
    some.releases.retire(5)
    some.releases.add(some.running(3, last_step=5))
    assert (some.free, some.releases.pending) == ((10, 4), False)


def test_a_preempted_sequence_waits_again_with_the_tokens_known_by_then(some: Fixture) -> None:
    sequence = some.running(1, last_step=2)
    row = sequence.row
    sequence.preempted = True
    some.releases.add(sequence)
    assert some.requeued == []
    some.rows.history[row, 2], some.rows.known[row] = 8, 3
    some.releases.retire(2)
    assert some.requeued == [sequence]
    assert (sequence.state, sequence.tokens.tolist()) == (SequenceState.WAITING, [1, 2, 8])
    assert (sequence.tables, sequence.preempted) == (None, False)


def test_blocks_outside_windows_return_without_their_sequence(some: Fixture) -> None:
    sequence = some.running(3, last_step=6)
    gone = [sequence.block_tables.tables[0].pop(0)]
    some.releases.add_blocks([gone], 6)
    assert (some.free[0], some.releases.num_blocks(())) == (7, 1)
    some.releases.retire(6)
    assert (some.free[0], some.releases.pending) == (8, False)


def test_a_block_is_coming_when_all_who_share_it_leave(some: Fixture) -> None:
    first, second = some.running(2, last_step=6), some.running(1, last_step=6)
    shared = first.block_tables.tables[0][0]
    some.kv.pools[0].share([shared])
    second.block_tables.tables[0].append(shared)
    some.releases.add(first)
    assert some.releases.num_blocks(()) == 1
    assert some.releases.num_blocks([second]) == 3
    some.releases.add(second)
    assert some.releases.num_blocks(()) == 3
    some.releases.retire(6)
    assert some.free == (10, 4)
