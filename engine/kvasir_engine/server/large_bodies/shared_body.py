"""Bytes in memory that can be given to another process without a copy."""

from __future__ import annotations

import asyncio
import mmap
import os

LARGE_BODY_BYTES = 128 * 1024
"""Bodies above this are read by a worker process. Below it, everything that is done with a body
takes an API process less than 5 ms."""


class BudgetExceededError(Exception):
    """The large bodies that are held already leave no room for more."""


class ByteBudget:
    """Bytes of large bodies that an API process may hold at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises BudgetExceededError."""
        if self.held + size > self.limit:
            raise BudgetExceededError
        self.held += size

    def give_back(self, size: int) -> None:
        """Count `size` bytes less."""
        self.held -= size


class SharedBody:
    """A body in a memory file of its own, as large as what was appended."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._fd: int | None = None
        self.size = 0

    @property
    def fd(self) -> int:
        """The memory file's descriptor, made when it is needed."""
        if self._fd is None:
            self._fd = os.memfd_create("kvasir-body", os.MFD_CLOEXEC)
        return self._fd

    def append(self, chunk: bytes) -> None:
        """Add bytes at the end. Raises BudgetExceededError."""
        self._budget.take(len(chunk))
        self.size += len(chunk)
        write_all(self.fd, chunk)

    async def append_in_thread(self, data: bytes) -> None:
        """As `append`, for much at once: filling so much memory takes milliseconds. Raises
        BudgetExceededError."""
        self._budget.take(len(data))
        self.size += len(data)
        await asyncio.to_thread(write_all, self.fd, data)

    def close_file(self) -> None:
        """Leave the memory to the process that has the descriptor, too; it still counts."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def close(self) -> None:
        """Free the memory; safe to call twice."""
        self.close_file()
        self._budget.give_back(self.size)
        self.size = 0


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` at the file's position."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_all(fd: int) -> bytes:
    """Return a memory file's content, and close it."""
    try:
        size = os.fstat(fd).st_size
        if not size:
            return b""
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as content:
            return content[:]
    finally:
        os.close(fd)


def memory_file(data: bytes) -> int:
    """Return the descriptor of a memory file that holds `data`."""
    fd = os.memfd_create("kvasir-result", os.MFD_CLOEXEC)
    write_all(fd, data)
    return fd
