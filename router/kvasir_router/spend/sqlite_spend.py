"""Spend in a SQLite file, for one router: its processes share the file."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from kvasir_router.spend.spend_store import Spend, SpendBatch, Spender, SpendStore
from kvasir_router.store_error import StoreError

_BUSY_SECONDS = 5.0
_Result = TypeVar("_Result")

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
    """One connection, on a thread of its own: nothing waits for the disk on the event loop.

    A batch and its number are one transaction: one that is sent again, since whoever waited for it
    was cancelled, is not added twice.
    """

    def __init__(self, path: Path, days: int) -> None:
        """`days`: those before today's last ones are forgotten."""
        self._path = path
        self._days = days
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """See SpendStore."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spend")
        await self._run(self._connect)

    async def add(self, batch: SpendBatch) -> None:
        """See SpendStore."""
        await self._run(partial(self._add, batch))

    async def elsewhere(self, day: int, router: str) -> dict[str, int]:
        """See SpendStore."""
        return await self._run(partial(self._elsewhere, day, router))

    async def report(self, first: int, last: int, limit: int) -> list[tuple[Spender, Spend]]:
        """See SpendStore."""
        return await self._run(partial(self._report, first, last, limit))

    async def close(self) -> None:
        """See SpendStore."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._connection is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._connection.close)
        thread.shutdown()

    async def _run(self, work: Callable[[], _Result]) -> _Result:
        if self._thread is None:
            raise StoreError(f"The file of spend {self._path} is not open.")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise StoreError(f"The file of spend {self._path} cannot be used: {error}.") from error

    # On the thread

    @property
    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.ProgrammingError("it is closed")
        return self._connection

    def _connect(self) -> None:
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_TABLES)
        except sqlite3.Error:
            connection.close()
            raise
        self._connection = connection

    def _add(self, batch: SpendBatch) -> None:
        connection = self._open_connection
        rows = [(*who, batch.router, *amounts) for who, amounts in batch.rows.items()]
        connection.execute("BEGIN IMMEDIATE")
        try:
            day = max(who.day for who in batch.rows)
            if connection.execute(_NUMBER, (batch.writer, batch.number, day)).rowcount:
                connection.executemany(_ADD, rows)
            connection.execute("DELETE FROM spend WHERE day <= ?", (day - self._days,))
            connection.execute("DELETE FROM writers WHERE day < ?", (day - 1,))
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _elsewhere(self, day: int, router: str) -> dict[str, int]:
        return dict(
            self._open_connection.execute(
                "SELECT key, sum(prompt + completion) FROM spend WHERE day = ? AND router != ? "
                "GROUP BY key",
                (day, router),
            ).fetchall()
        )

    def _report(self, first: int, last: int, limit: int) -> list[tuple[Spender, Spend]]:
        found = self._open_connection.execute(_REPORT, (first, last, limit))
        return [(Spender(*row[:4]), Spend(*row[4:])) for row in found]
