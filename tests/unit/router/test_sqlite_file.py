"""A file that stores share: calls on its thread, transactions, and what its errors say."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvasir_router import sqlite_file
from kvasir_router.sqlite_file import SqliteFile, transaction
from kvasir_router.store_error import StoreError

TABLES = "CREATE TABLE IF NOT EXISTS words (word TEXT);"


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteFile]:
    made = SqliteFile(tmp_path / "f.db", "words", TABLES)
    await made.open()
    yield made
    await made.close()


def words(connection: sqlite3.Connection) -> list[str]:
    return [word for (word,) in connection.execute("SELECT word FROM words")]


async def test_a_transaction_writes_all_or_nothing(file: SqliteFile) -> None:
    def write(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            connection.execute("INSERT INTO words VALUES ('whole')")

    def fail(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            connection.execute("INSERT INTO words VALUES ('half')")
            connection.execute("INSERT INTO none VALUES (1)")

    await file.run(write)
    with pytest.raises(StoreError, match=r"file of words .* cannot be used: no such table: none"):
        await file.run(fail)
    assert await file.run(words) == ["whole"]


async def test_what_waits_too_long_and_what_is_closed_is_told(
    file: SqliteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_file, "MAX_WAITING", 0)
        with pytest.raises(StoreError, match="0 calls wait for the file of words"):
            await file.run(words)
    await file.close()
    with pytest.raises(StoreError, match=r"The file of words .* is not open\."):
        await file.run(words)
