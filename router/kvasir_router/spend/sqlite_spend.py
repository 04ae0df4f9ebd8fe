"""Spend in a SQLite file, for one router: its processes share the file."""

import sqlite3
from functools import partial
from pathlib import Path

from kvasir_router.spend.spend_store import Spend, SpendBatch, Spender, SpendStore
from kvasir_router.sqlite_file import SqliteFile, transaction

_TABLES = """
CREATE TABLE IF NOT EXISTS spend (
  day INTEGER NOT NULL, key TEXT NOT NULL, tenant TEXT NOT NULL, model TEXT NOT NULL,
  router TEXT NOT NULL, requests INTEGER NOT NULL, prompt INTEGER NOT NULL,
  cached INTEGER NOT NULL, completion INTEGER NOT NULL,
  PRIMARY KEY (day, key, tenant, model, router)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS writers (
  writer TEXT PRIMARY KEY, number INTEGER NOT NULL, day INTEGER NOT NULL) WITHOUT ROWID;
"""
_ADD = """INSERT INTO spend VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
  ON CONFLICT DO UPDATE SET requests = requests + excluded.requests,
    prompt = prompt + excluded.prompt, cached = cached + excluded.cached,
    completion = completion + excluded.completion"""
_NUMBER = """INSERT INTO writers VALUES (?, ?, ?) ON CONFLICT DO UPDATE
  SET number = excluded.number, day = excluded.day WHERE number < excluded.number"""
_REPORT = """SELECT day, key, tenant, model, sum(requests), sum(prompt), sum(cached),
  sum(completion) FROM spend WHERE day BETWEEN ? AND ?
  GROUP BY day, key, tenant, model ORDER BY day, key, tenant, model LIMIT ?"""


class SqliteSpend(SpendStore):
    """A batch and its number are one transaction: one that is sent again, since whoever waited for
    it was cancelled, is not added twice."""

    def __init__(self, path: Path, days: int) -> None:
        """`days`: those before today's last ones are forgotten."""
        self._file = SqliteFile(path, "spend", _TABLES)
        self._days = days

    async def open(self) -> None:
        """See SpendStore."""
        await self._file.open()

    async def add(self, batch: SpendBatch) -> None:
        """See SpendStore."""
        await self._file.run(partial(self._add, batch))

    async def elsewhere(self, day: int, router: str) -> dict[str, int]:
        """See SpendStore."""
        return await self._file.run(partial(_elsewhere, day, router))

    async def report(self, first: int, last: int, limit: int) -> list[tuple[Spender, Spend]]:
        """See SpendStore."""
        return await self._file.run(partial(_report, first, last, limit))

    async def close(self) -> None:
        """See SpendStore."""
        await self._file.close()

    # On the file's thread

    def _add(self, batch: SpendBatch, connection: sqlite3.Connection) -> None:
        rows = [(*who, batch.router, *amounts) for who, amounts in batch.rows.items()]
        with transaction(connection):
            day = max(who.day for who in batch.rows)
            if connection.execute(_NUMBER, (batch.writer, batch.number, day)).rowcount:
                connection.executemany(_ADD, rows)
            connection.execute("DELETE FROM spend WHERE day <= ?", (day - self._days,))
            connection.execute("DELETE FROM writers WHERE day < ?", (day - 1,))


def _elsewhere(day: int, router: str, connection: sqlite3.Connection) -> dict[str, int]:
    return dict(
        connection.execute(
            "SELECT key, sum(prompt + completion) FROM spend WHERE day = ? AND router != ? "
            "GROUP BY key",
            (day, router),
        ).fetchall()
    )


def _report(
    first: int, last: int, limit: int, connection: sqlite3.Connection
) -> list[tuple[Spender, Spend]]:
    found = connection.execute(_REPORT, (first, last, limit))
    return [(Spender(*row[:4]), Spend(*row[4:])) for row in found]
