"""Step plans from rank 0 to the other ranks, through a ring in shared memory.

One writer, several readers, each of which gets every message. The ring has equal slots; a message
fills one or more of them. Who waits sleeps in the kernel: each reader has an eventfd that counts
the slots written for it, and one that counts the slots it has read, which is the writer's room.
The counts also order the memory accesses: a slot is read after its write was counted, and written
again only after its reads were. The memory and the counters have no name; a reader in another
process inherits their descriptors.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
from contextlib import suppress
from dataclasses import dataclass

SLOTS = 64
SLOT_BYTES = 64 << 10

_HEADER = struct.Struct("<QII")
"""Sequence number of the slot, bytes used, and what follows."""
_LAST, _MORE, _CLOSED = range(3)


@dataclass(frozen=True, slots=True)
class ReaderEnd:
    """Descriptors that one reader needs, and the ring's shape."""

    memory: int
    written: int
    read: int
    slots: int
    slot_bytes: int

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """Descriptors that a child process must inherit."""
        return self.memory, self.written, self.read


class PlanWriter:
    """The sending end, in rank 0. Not thread-safe."""

    def __init__(
        self, num_readers: int, *, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES
    ) -> None:
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._memory = os.memfd_create("kvasir-plans")
        os.ftruncate(self._memory, slots * slot_bytes)
        self._map = mmap.mmap(self._memory, slots * slot_bytes)
        self._next = 0
        self._written = [os.eventfd(0, os.EFD_SEMAPHORE) for _ in range(num_readers)]
        self._read = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(num_readers)]
        self._room = [slots] * num_readers
        self._closed = False

    def reader(self, index: int) -> ReaderEnd:
        """Return the end that reader `index` needs; valid until this end is closed."""
        return ReaderEnd(
            self._memory, self._written[index], self._read[index], self._slots, self._slot_bytes
        )

    def send(self, message: bytes) -> None:
        """Give every reader `message`; blocks while the slowest one has left no room."""
        part = self._slot_bytes - _HEADER.size
        last = max(0, len(message) - 1) // part * part
        for start in range(0, last + 1, part):
            kind = _LAST if start == last else _MORE
            self._write_slot(kind, message[start : start + part])

    def close(self) -> None:
        """Tell the readers that nothing more comes and free the ring. Idempotent.

        Does not wait: when a reader has left no room, none is told.
        """
        if self._closed:
            return
        self._closed = True
        if all(self._has_room(reader) for reader in range(len(self._read))):
            self._write_slot(_CLOSED, b"")
        self._map.close()
        for descriptor in (self._memory, *self._written, *self._read):
            os.close(descriptor)

    def _write_slot(self, kind: int, data: bytes) -> None:
        self._wait_for_room()
        at = self._next % self._slots * self._slot_bytes
        _HEADER.pack_into(self._map, at, self._next, len(data), kind)
        at += _HEADER.size
        self._map[at : at + len(data)] = data
        self._next += 1
        for descriptor in self._written:
            os.eventfd_write(descriptor, 1)

    def _wait_for_room(self) -> None:
        for reader, descriptor in enumerate(self._read):
            while not self._has_room(reader):
                poller = select.poll()
                poller.register(descriptor, select.POLLIN)
                poller.poll()
            self._room[reader] -= 1

    def _has_room(self, reader: int) -> bool:
        """Return True if a slot is free at `reader`, looking again only when none was left."""
        if self._room[reader] == 0:
            # Not ready: nothing was read since the last look.
            with suppress(BlockingIOError):
                self._room[reader] = os.eventfd_read(self._read[reader])
        return self._room[reader] > 0


class PlanReader:
    """The receiving end of one rank; owns the descriptors it was given."""

    def __init__(self, end: ReaderEnd) -> None:
        self._end = end
        self._map = mmap.mmap(end.memory, end.slots * end.slot_bytes, prot=mmap.PROT_READ)
        self._next = 0

    def receive(self) -> bytearray | None:
        """The next message, once it is there; None when the writer has closed."""
        message = bytearray()
        kind = _MORE
        while kind == _MORE:
            os.eventfd_read(self._end.written)
            at = self._next % self._end.slots * self._end.slot_bytes
            sequence, size, kind = _HEADER.unpack_from(self._map, at)
            if sequence != self._next:
                raise RuntimeError(f"slot {self._next} of the plans holds {sequence}: a defect.")
            at += _HEADER.size
            message += self._map[at : at + size]
            self._next += 1
            os.eventfd_write(self._end.read, 1)
        return None if kind == _CLOSED else message

    def close(self) -> None:
        """Free the ring."""
        self._map.close()
        for descriptor in self._end.descriptors:
            os.close(descriptor)
