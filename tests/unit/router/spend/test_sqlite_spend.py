"""The file of spend: its age and its faults."""

import asyncio

import pytest

from kvasir_router.spend.spend_store import Spend, SpendBatch, Spender
from kvasir_router.spend.sqlite_spend import SqliteSpend
from kvasir_router.store_error import StoreError


def batch(number: int, day: int) -> SpendBatch:
    return SpendBatch("r", "r:w", number, {Spender(day, "a", "t", "m"): Spend(1, 1, 0, 0)})


async def test_old_days_are_forgotten(tmp_path) -> None:
    store = SqliteSpend(tmp_path / "spend.db", 2)
    await store.open()
    for number, day in enumerate((100, 101, 102), 1):
        await store.add(batch(number, day))
    assert [who.day for who, _ in await store.report(0, 200, 10)] == [101, 102]
    await store.close()
    await store.close()


async def test_a_file_that_cannot_be_used_is_told(tmp_path) -> None:
    store = SqliteSpend(tmp_path / "none" / "spend.db", 2)
    with pytest.raises(StoreError, match="is not open"):
        await store.report(0, 1, 1)
    with pytest.raises(StoreError, match="cannot be used: unable to open"):
        await store.open()
    with pytest.raises(StoreError, match="it is closed"):
        await store.add(batch(1, 1))
    await store.close()


async def test_a_batch_whose_waiter_was_cancelled_is_not_added_twice(tmp_path) -> None:
    store = SqliteSpend(tmp_path / "spend.db", 2)
    await store.open()
    adding = asyncio.create_task(store.add(batch(1, 100)))
    await asyncio.sleep(0)
    adding.cancel()
    await asyncio.gather(adding, return_exceptions=True)
    await store.add(batch(1, 100))
    [(_, amounts)] = await store.report(100, 100, 10)
    assert amounts == Spend(1, 1, 0, 0)
    await store.close()
