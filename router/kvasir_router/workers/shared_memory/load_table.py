"""Requests that each process has in flight at each replica, in memory that all of them share.

A column a process, a row a replica. Only its own process writes a column, so nothing is locked; a
reader sees each number as it was or as it is. When a process has ended, whoever started it clears
its column, and what it had in flight is counted no more.
"""

import mmap
import os
import time
from collections.abc import Callable, Iterable, Sequence

MAX_REPLICAS = 4096
IN_FLIGHT, CREDIT = 0, 1
_FIELDS = 2
_BYTES = 8
_COLUMN = MAX_REPLICAS * _FIELDS

LOOK_SECONDS = 0.0005
"""Between two looks at the others' columns."""


class LoadTable:
    """Made before the processes are forked, which all map the same memory."""

    def __init__(self, columns: int) -> None:
        size = columns * (1 + _COLUMN) * _BYTES
        fd = os.memfd_create("kvasir-router-load")
        try:
            os.ftruncate(fd, size)
            memory = memoryview(mmap.mmap(fd, size))
        finally:
            os.close(fd)
        self._beats = memory[: columns * _BYTES].cast("q")
        cells = memory[columns * _BYTES :]
        width = _COLUMN * _BYTES
        self._columns = [cells[at * width : (at + 1) * width] for at in range(columns)]

    @property
    def columns(self) -> int:
        return len(self._columns)

    def allocate_column(self) -> int | None:
        """A free column for a process that is about to begin; None if there is none."""
        for column, beat in enumerate(self._beats):
            if not beat:
                self.beat(column)
                return column
        return None

    def beat(self, column: int) -> None:
        """Its process is alive, and its loop turns."""
        self._beats[column] = time.monotonic_ns()

    def silence(self, column: int) -> float:
        """Seconds since its last beat."""
        return (time.monotonic_ns() - self._beats[column]) / 1e9

    def free(self, column: int) -> None:
        """Its process has ended: what it had in flight is gone."""
        cells = self._columns[column]
        cells[:] = bytes(len(cells))
        self._beats[column] = 0

    def cells(self, column: int) -> memoryview:
        """A process's own numbers: those of replica `slot` at 2 * slot + IN_FLIGHT or CREDIT."""
        return self._columns[column].cast("q")

    def others(self, column: int) -> list[memoryview]:
        """The columns of the processes that live, without one's own."""
        return [cells for at, cells in enumerate(self._columns) if at != column and self._beats[at]]

    def is_unused(self, slot: int) -> bool:
        """Return True if no process has anything in flight at the replica."""
        start, end = slot * _FIELDS * _BYTES, (slot + 1) * _FIELDS * _BYTES
        return not any(any(cells[start:end]) for cells in self._columns)


def add_columns(columns: Iterable[memoryview], slots: int) -> Sequence[int]:
    """Their sum, up to that many replicas. All numbers of a column are added in one operation on
    integers that wide: none is negative, and none can grow into its neighbour."""
    size = slots * _FIELDS * _BYTES
    total = sum(int.from_bytes(cells[:size], "little") for cells in columns)
    return memoryview(total.to_bytes(size, "little")).cast("q")


class Others:
    """Requests that the other processes have in flight, told to `tell` with (slot, in flight,
    credit) as they change. `refresh` is called for each choice, and looks every half
    millisecond."""

    def __init__(
        self,
        table: LoadTable,
        column: int,
        tell: Callable[[int, int, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._column = column
        self._tell = tell
        self._clock = clock
        self._slots = 0
        self._seen: Sequence[int] | None = None
        self._columns: list[memoryview] = []
        self._not_before = 0.0

    def watch(self, slots: int) -> None:
        """Look at the replicas below this slot from now on; all are told, for some are new."""
        self._slots = slots
        self._seen = None
        self.find()

    def find(self) -> None:
        """See which processes live; to be called now and then."""
        self._columns = self._table.others(self._column)
        self._not_before = 0.0

    def refresh(self) -> None:
        """Tell what has changed, if it is time."""
        now = self._clock()
        if now < self._not_before:
            return
        self._not_before = now + LOOK_SECONDS
        before, sums = self._seen, add_columns(self._columns, self._slots)
        if sums == before:
            return
        self._seen = sums
        for at in range(0, len(sums), _FIELDS):
            in_flight, credit = sums[at], sums[at + 1]
            if before is None or in_flight != before[at] or credit != before[at + 1]:
                self._tell(at // _FIELDS, in_flight, credit)
