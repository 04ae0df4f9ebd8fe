"""Rows of the load table for replicas."""

import pytest

from kvasir_router.workers.shared_memory.load_table_rows import LoadTableRows, TooManyReplicasError

A, B = ("m", "a", "127.0.0.1", 1), ("m", "b", "127.0.0.1", 2)


def test_a_replica_keeps_its_slot_also_in_the_next_process() -> None:
    slots = LoadTableRows(lambda slot: True)
    assert [slots.allocate(A), slots.allocate(B), slots.allocate(A)] == [0, 1, 0]
    successor = LoadTableRows(lambda slot: True)
    successor.slots = slots.slots
    assert [successor.allocate(B), successor.allocate(A)] == [1, 0]


def test_a_slot_in_which_requests_are_counted_is_not_given_away() -> None:
    used = {0}
    slots = LoadTableRows(lambda slot: slot not in used)
    assert slots.allocate(A) == 1
    slots.free(A)
    used.clear()
    assert slots.allocate(B) == 0


def test_there_is_an_end() -> None:
    slots = LoadTableRows(lambda slot: True, 1)
    slots.allocate(A)
    with pytest.raises(TooManyReplicasError, match="at most 1 replicas"):
        slots.allocate(B)
