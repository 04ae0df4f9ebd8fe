"""A SQLite file as a store's place, for one router: its processes share the file."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from kvasir_router.store_error import StoreError

MAX_WAITING = 1024
"""Calls that wait for a file; one more is refused, so that a slow disk fills no memory."""
_BUSY_SECONDS = 5.0
_Result = TypeVar("_Result")


class SqliteFile:
    """One connection, on a thread of its own: nothing waits for the disk on the event loop."""

    def __init__(self, path: Path, content: str, tables: str) -> None:
        """`content` names what is in the file, for errors; `tables` are the statements that make
        its tables where they do not exist."""
        self.path = path
        self._content = content
        self._tables = tables
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._waiting = 0

    async def open(self) -> None:
        """Open the file, and make its tables. Raises StoreError."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=self._content)
        await self._on_thread(self._connect)

    async def run(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Return what `work`, called on the thread, makes of the connection. Raises StoreError."""
        return await self._on_thread(partial(self._with_connection, work))

    async def close(self) -> None:
        """Close the file behind all that waits."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._connection is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._connection.close)
        thread.shutdown()

    async def _on_thread(self, work: Callable[[], _Result]) -> _Result:
        name = f"file of {self._content} {self.path}"
        if self._thread is None:
            raise StoreError(f"The {name} is not open.")
        if self._waiting >= MAX_WAITING:
            raise StoreError(f"{MAX_WAITING} calls wait for the {name}.")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise StoreError(f"The {name} cannot be used: {error}.") from error
        finally:
            self._waiting -= 1

    # On the thread

    def _with_connection(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        if self._connection is None:
            raise sqlite3.ProgrammingError("it is closed")
        return work(self._connection)

    def _connect(self) -> None:
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(self._tables)
        except sqlite3.Error:
            connection.close()
            raise
        self._connection = connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write all of the block, or nothing where it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
