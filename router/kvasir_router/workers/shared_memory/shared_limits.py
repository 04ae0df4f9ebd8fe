"""Use of every API key, in memory that all workers share: limits hold over all of them.

A key's buckets and budget are one record. A worker locks it (an fcntl lock on its first byte, which
the kernel takes back from a process that dies), computes as a router of one process does, and
writes it back: 4 us, only for keys that have limits. A record stays locked for microseconds; a
worker that finds it locked for much longer, because the holder was stopped, goes on without.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b

import structlog

from kvasir_router.admission.limits import Allowance, Excess, KeyLimits

RECORDS = 131_072
"""Keys that may ever be seen; a key file has 50,000 at most."""
_RECORD = struct.Struct("=Q7d")
_TAG = struct.Struct("=Q")
_STATE = struct.Struct("=6d")
_TRIES = 2000
_PROBES = 512
"""Records that a key is looked for in; the table counts as full for one that is in none of them."""

_log = structlog.get_logger("kvasir_router.keys")


class SharedLimitTable:
    """Made before the processes are forked, which all map the same memory. It takes as much as the
    keys in use need."""

    def __init__(self, records: int = RECORDS) -> None:
        size = records * _RECORD.size
        self._records = records
        self.unshared: set[str] = set()
        """Ids of keys for which there was no record: each process limits them by itself."""
        self._fd = os.memfd_create("kvasir-router-ledger")
        os.ftruncate(self._fd, size)
        self._memory = mmap.mmap(self._fd, size)

    def limits(self, key_id: str, allowance: Allowance, now: float) -> KeyLimits:
        """A key's limits, with what was used of them in any process."""
        if allowance == Allowance():
            return KeyLimits(allowance, now)
        record = self._find(key_id)
        if record is None:
            # More ids than key files ever hold came and went: what is known is kept for them
            if not self.unshared:
                _log.error(
                    "the workers' table of limits is full: each worker limits further keys by "
                    "itself, so they get up to as many times their limits as there are workers; "
                    "restart the router",
                    key=key_id,
                )
            self.unshared.add(key_id)
            return KeyLimits(allowance, now)
        return SharedKeyLimits(self, record, allowance, now)

    def read(self, record: int) -> tuple[float, ...]:
        """A record's numbers."""
        return _STATE.unpack_from(self._memory, record + _TAG.size)

    def write_record(self, record: int, state: tuple[float, ...]) -> None:
        """Set them."""
        _STATE.pack_into(self._memory, record + _TAG.size, *state)

    @contextmanager
    def locked(self, record: int) -> Iterator[None]:
        """While no other process has it, as far as can be waited for."""
        has = self._lock(record)
        try:
            yield
        finally:
            if has:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, record)

    def _lock(self, record: int) -> bool:
        for _ in range(_TRIES):
            with suppress(OSError):
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, record)
                return True
            os.sched_yield()
        return False

    def _find(self, key_id: str) -> int | None:
        """The key's record, made if there is none; None if there is no place for it."""
        tag = int.from_bytes(blake2b(key_id.encode(), digest_size=8).digest(), "little") or 1
        for step in range(min(self._records, _PROBES)):
            record = (tag + step) % self._records * _RECORD.size
            with self.locked(record):
                (found,) = _TAG.unpack_from(self._memory, record)
                if not found:
                    _TAG.pack_into(self._memory, record, tag)
            if found in (0, tag):
                return record
        return None


class SharedKeyLimits(KeyLimits):
    """One key's limits in one process: their state is the ledger's."""

    __slots__ = ("_ledger", "_record")

    def __init__(
        self, ledger: SharedLimitTable, record: int, allowance: Allowance, now: float
    ) -> None:
        super().__init__(allowance, now)
        self._ledger = ledger
        self._record = record

    def admit(self, tokens: int, now: float, unix: float) -> Excess | None:
        """KeyLimits.admit."""
        with self._ledger.locked(self._record):
            self._read()
            excess = super().admit(tokens, now, unix)
            self._write()
        return excess

    def settle(self, reserved: int, used: int, since: float, now: float, unix: float) -> None:
        """KeyLimits.settle."""
        with self._ledger.locked(self._record):
            self._read()
            super().settle(reserved, used, since, now, unix)
            self._write()

    def _read(self) -> None:
        state = self._ledger.read(self._record)
        for at, part in enumerate(self.parts):
            if part is not None and state[2 * at + 1]:  # else nobody has used it
                part.restore(state[2 * at], state[2 * at + 1])

    def _write(self) -> None:
        state = list(self._ledger.read(self._record))
        for at, part in enumerate(self.parts):
            if part is not None:
                state[2 * at : 2 * at + 2] = part.state
        self._ledger.write_record(self._record, tuple(state))
