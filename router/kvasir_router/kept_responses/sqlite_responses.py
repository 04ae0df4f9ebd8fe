"""Responses in a SQLite file, for one router: its processes share the file."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from kvasir_router.kept_responses.packed_response import pack, unpack
from kvasir_router.kept_responses.response_store import (
    KeptResponse,
    ResponseStore,
    StoreError,
    StoreLimits,
)

MAX_WAITING = 1024
"""Calls that wait for the file; one more is refused, so that a slow disk fills no memory."""
_BUSY_SECONDS = 5.0
_Result = TypeVar("_Result")

_TABLES = """
CREATE TABLE IF NOT EXISTS responses (
  owner TEXT NOT NULL, id TEXT NOT NULL, created REAL NOT NULL, expires REAL NOT NULL,
  size INTEGER NOT NULL, content BLOB NOT NULL, PRIMARY KEY (owner, id));
CREATE INDEX IF NOT EXISTS responses_by_age ON responses (owner, created);
CREATE INDEX IF NOT EXISTS responses_by_end ON responses (expires);
CREATE TABLE IF NOT EXISTS owners (
  owner TEXT PRIMARY KEY, responses INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS response_came AFTER INSERT ON responses BEGIN
  INSERT INTO owners VALUES (new.owner, 1, new.size) ON CONFLICT (owner)
    DO UPDATE SET responses = responses + 1, bytes = bytes + new.size;
END;
CREATE TRIGGER IF NOT EXISTS response_went AFTER DELETE ON responses BEGIN
  UPDATE owners SET responses = responses - 1, bytes = bytes - old.size WHERE owner = old.owner;
  DELETE FROM owners WHERE owner = old.owner AND responses = 0;
END;
"""
_OLDEST = """DELETE FROM responses WHERE rowid =
  (SELECT rowid FROM responses WHERE owner = ? ORDER BY created LIMIT 1)"""


class SqliteResponses(ResponseStore):
    """One connection, on a thread of its own: nothing waits for the disk on the event loop.

    When all is full, the oldest response goes of the key that holds most: no key makes another's
    conversations end by keeping much itself.
    """

    def __init__(self, path: Path, limits: StoreLimits) -> None:
        self._path = path
        self._limits = limits
        self._connection: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._waiting = 0

    async def open(self) -> None:
        """See ResponseStore."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        await self._run(self._connect)

    async def put(self, kept: KeptResponse) -> None:
        """See ResponseStore."""
        await self._run(partial(self._put, kept))

    async def find(self, owner: str, response_id: str) -> KeptResponse | None:
        """See ResponseStore."""
        return await self._run(partial(self._find, owner, response_id))

    async def delete(self, owner: str, response_id: str) -> bool:
        """See ResponseStore."""
        return await self._run(partial(self._delete, owner, response_id))

    async def close(self) -> None:
        """See ResponseStore."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._connection is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._connection.close)
        thread.shutdown()

    async def _run(self, work: Callable[[], _Result]) -> _Result:
        if self._thread is None:
            raise StoreError(f"The file of responses {self._path} is not open.")
        if self._waiting >= MAX_WAITING:
            raise StoreError(f"{MAX_WAITING} calls wait for the file of responses {self._path}.")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise StoreError(
                f"The file of responses {self._path} cannot be used: {error}."
            ) from error
        finally:
            self._waiting -= 1

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

    def _put(self, kept: KeptResponse) -> None:
        content = pack(kept.response, kept.items)
        size = len(content) + len(kept.owner) + len(kept.id)
        if size > self._limits.total_bytes:
            raise StoreError(
                f"A response of {size} bytes is larger than the {self._limits.total_bytes} that "
                "all responses may have."
            )
        connection = self._open_connection
        now = time.time()
        row = (kept.owner, kept.id, now, now + self._limits.seconds, size, content)
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute("DELETE FROM responses WHERE expires <= ?", (now,))
            connection.execute("DELETE FROM responses WHERE owner = ? AND id = ?", row[:2])
            self._make_room(connection, kept.owner, size)
            connection.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?)", row)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _make_room(self, connection: sqlite3.Connection, owner: str, size: int) -> None:
        count = "SELECT responses FROM owners WHERE owner = ?"
        while _number(connection, count, owner) >= self._limits.per_key:
            connection.execute(_OLDEST, (owner,))
        total = "SELECT total(bytes) FROM owners"
        while _number(connection, total) + size > self._limits.total_bytes:
            most = connection.execute("SELECT owner FROM owners ORDER BY bytes DESC LIMIT 1")
            connection.execute(_OLDEST, most.fetchone())

    def _find(self, owner: str, response_id: str) -> KeptResponse | None:
        found = self._open_connection.execute(
            "SELECT content FROM responses WHERE owner = ? AND id = ? AND expires > ?",
            (owner, response_id, time.time()),
        ).fetchone()
        if found is None:
            return None
        try:
            response, items = unpack(found[0])
        except ValueError as error:
            raise sqlite3.DataError(str(error)) from error
        return KeptResponse(owner, response_id, response, items)

    def _delete(self, owner: str, response_id: str) -> bool:
        gone = self._open_connection.execute(
            "DELETE FROM responses WHERE owner = ? AND id = ?", (owner, response_id)
        )
        return gone.rowcount > 0


def _number(connection: sqlite3.Connection, query: str, *values: str) -> int:
    found = connection.execute(query, values).fetchone()
    return 0 if found is None else int(found[0])
