"""Responses in a SQLite file, for one router: its processes share the file."""

import sqlite3
import time
from functools import partial
from pathlib import Path

from kvasir_router.kept_responses.packed_response import pack, unpack
from kvasir_router.kept_responses.response_store import (
    KeptResponse,
    ResponseStore,
    StoreError,
    StoreLimits,
)
from kvasir_router.sqlite_file import SqliteFile, transaction

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
    """When all is full, the oldest response goes of the key that holds most: no key makes
    another's conversations end by keeping much itself."""

    def __init__(self, path: Path, limits: StoreLimits) -> None:
        self._file = SqliteFile(path, "responses", _TABLES)
        self._limits = limits

    async def open(self) -> None:
        """See ResponseStore."""
        await self._file.open()

    async def put(self, kept: KeptResponse) -> None:
        """See ResponseStore."""
        await self._file.run(partial(self._put, kept))

    async def find(self, owner: str, response_id: str) -> KeptResponse | None:
        """See ResponseStore."""
        return await self._file.run(partial(_find, owner, response_id))

    async def delete(self, owner: str, response_id: str) -> bool:
        """See ResponseStore."""
        return await self._file.run(partial(_delete, owner, response_id))

    async def close(self) -> None:
        """See ResponseStore."""
        await self._file.close()

    # On the file's thread

    def _put(self, kept: KeptResponse, connection: sqlite3.Connection) -> None:
        content = pack(kept.response, kept.items)
        size = len(content) + len(kept.owner) + len(kept.id)
        if size > self._limits.total_bytes:
            raise StoreError(
                f"A response of {size} bytes is larger than the {self._limits.total_bytes} that "
                "all responses may have."
            )
        now = time.time()
        row = (kept.owner, kept.id, now, now + self._limits.seconds, size, content)
        with transaction(connection):
            connection.execute("DELETE FROM responses WHERE expires <= ?", (now,))
            connection.execute("DELETE FROM responses WHERE owner = ? AND id = ?", row[:2])
            self._make_room(connection, kept.owner, size)
            connection.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?)", row)

    def _make_room(self, connection: sqlite3.Connection, owner: str, size: int) -> None:
        count = "SELECT responses FROM owners WHERE owner = ?"
        while _number(connection, count, owner) >= self._limits.per_key:
            connection.execute(_OLDEST, (owner,))
        total = "SELECT total(bytes) FROM owners"
        while _number(connection, total) + size > self._limits.total_bytes:
            most = connection.execute("SELECT owner FROM owners ORDER BY bytes DESC LIMIT 1")
            connection.execute(_OLDEST, most.fetchone())


def _find(owner: str, response_id: str, connection: sqlite3.Connection) -> KeptResponse | None:
    found = connection.execute(
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


def _delete(owner: str, response_id: str, connection: sqlite3.Connection) -> bool:
    gone = connection.execute(
        "DELETE FROM responses WHERE owner = ? AND id = ?", (owner, response_id)
    )
    return gone.rowcount > 0


def _number(connection: sqlite3.Connection, query: str, *values: str) -> int:
    found = connection.execute(query, values).fetchone()
    return 0 if found is None else int(found[0])
