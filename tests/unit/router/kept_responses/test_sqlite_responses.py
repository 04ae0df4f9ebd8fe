"""Responses in a file: whose they are, and what goes when there is no room."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from kvasir_router import sqlite_file
from kvasir_router.kept_responses.response_store import KeptResponse, StoreError

Make = Callable[..., KeptResponse]


async def ids(store: Any, owner: str, *wanted: str) -> list[str]:
    return [each for each in wanted if await store.find(owner, each) is not None]


async def test_a_response_is_its_owners_alone(open_file: Any, kept: Make) -> None:
    store = await open_file()
    one = kept("a", "r1", response=b'{"id":"r1"}', items=b'["x"]')
    await store.put(one)
    assert await store.find("a", "r1") == one
    assert await store.find("b", "r1") is None
    assert await store.delete("b", "r1") is False
    await store.put(kept("b", "r1", response=b"{}"))
    assert await store.find("a", "r1") == one
    assert await store.delete("a", "r1") is True
    assert await store.find("a", "r1") is None
    assert await store.find("b", "r1") is not None


async def test_another_process_and_another_life_have_it(open_file: Any, kept: Make) -> None:
    first, second = await open_file(), await open_file()
    await first.put(kept("a", "r1"))
    assert await second.find("a", "r1") is not None
    await first.close()
    await second.put(kept("a", "r2"))
    third = await open_file()
    assert await ids(third, "a", "r1", "r2") == ["r1", "r2"]


async def test_many_at_once(open_file: Any, kept: Make) -> None:
    stores = [await open_file() for _ in range(3)]
    await asyncio.gather(*(stores[n % 3].put(kept("a", f"r{n}")) for n in range(60)))
    assert len(await ids(stores[0], "a", *(f"r{n}" for n in range(60)))) == 60


async def test_it_is_forgotten_after_its_time(open_file: Any, kept: Make) -> None:
    store = await open_file(seconds=0.0)
    await store.put(kept("a", "r1"))
    assert await store.find("a", "r1") is None


async def test_the_oldest_of_a_key_go_first(open_file: Any, kept: Make) -> None:
    store = await open_file(per_key=2)
    await store.put(kept("b", "r0"))
    for n in (1, 2, 3):
        await store.put(kept("a", f"r{n}"))
    assert await ids(store, "a", "r1", "r2", "r3") == ["r2", "r3"]
    assert await ids(store, "b", "r0") == ["r0"]
    await store.put(kept("a", "r3"))  # again
    assert await ids(store, "a", "r2", "r3") == ["r2", "r3"]


async def test_who_has_most_makes_room(open_file: Any, kept: Make) -> None:
    store = await open_file(total_bytes=10_000)
    await store.put(kept("small", "r0", response=os.urandom(1000)))
    for n in range(20):
        await store.put(kept("large", f"r{n}", response=os.urandom(1000)))
    assert await ids(store, "small", "r0") == ["r0"]
    left = await ids(store, "large", *(f"r{n}" for n in range(20)))
    assert left == [f"r{n}" for n in range(20 - len(left), 20)]
    assert 5 <= len(left) <= 9


async def test_what_is_too_large_is_refused_and_nothing_goes(open_file: Any, kept: Make) -> None:
    store = await open_file(total_bytes=2000)
    await store.put(kept("a", "r1"))
    with pytest.raises(StoreError, match="larger than the 2000"):
        await store.put(kept("a", "r2", response=os.urandom(3000)))
    assert await ids(store, "a", "r1", "r2") == ["r1"]


async def test_a_file_that_cannot_be_used(tmp_path: Any, open_file: Any) -> None:
    (tmp_path / "responses").write_bytes(b"no database, but longer than a header is" * 40)
    with pytest.raises(StoreError, match=r"responses cannot be used: file is not a database\."):
        await open_file()


async def test_a_damaged_response_is_an_error(open_file: Any, kept: Make) -> None:
    store = await open_file()
    await store.put(kept("a", "r1"))
    await store._file.run(lambda file: file.execute("UPDATE responses SET content = x'00'"))
    with pytest.raises(StoreError, match="cannot be read"):
        await store.find("a", "r1")


async def test_too_many_calls_are_refused(
    open_file: Any, kept: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_file()
    monkeypatch.setattr(sqlite_file, "MAX_WAITING", 0)
    with pytest.raises(StoreError, match="0 calls wait"):
        await store.find("a", "r1")


async def test_a_closed_one_says_so(open_file: Any) -> None:
    store = await open_file()
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="is not open"):
        await store.find("a", "r1")
