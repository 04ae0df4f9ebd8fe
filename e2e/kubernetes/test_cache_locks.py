"""Locks of models in use on a file system that treats flock as NFS does (root, /dev/fuse).

This kernel may have no NFS client: a small FUSE file system, mounted here, refuses an exclusive
lock to a descriptor that only reads, and asks for locks the kernel's own way.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kvasir.models.cache.layout import MANIFEST
from kvasir.models.cache.use_lock import hold, is_held

CONTENT = b"{}"
ROOT, FILE = 1, 2
MNT_DETACH = 2
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE = 1, 2, 3, 14, 15, 17, 18
FLUSH, INIT, SETLK, SETLKW, INTERRUPT = 25, 26, 32, 33, 36
FLOCK_LOCKS = 1 << 10
UNLOCK = 2


class NfsLike:
    """A mounted directory with one file, the manifest."""

    def __init__(self, where: Path) -> None:
        self._where = os.fsencode(where)
        self._device = os.open("/dev/fuse", os.O_RDWR)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._modes: dict[int, int] = {}
        self._locks: dict[int, bool] = {}
        """Owners of locks; True = exclusive."""
        self.refused = 0
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        if self._libc.mount(b"nfslike", self._where, b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "FUSE cannot be mounted")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._libc.umount2(self._where, MNT_DETACH)
        self._thread.join()
        os.close(self._device)

    def _serve(self) -> None:
        with suppress(OSError):  # ENODEV: it is not mounted any more
            while True:
                request = os.read(self._device, 1 << 20)
                _, code, unique, node = struct.unpack_from("<IIQQ", request)
                if code in (FORGET, INTERRUPT):
                    continue
                answer = self._answer(code, node, request[40:])
                status, body = (-answer, b"") if isinstance(answer, int) else (0, answer)
                os.write(self._device, struct.pack("<IiQ", 16 + len(body), status, unique) + body)

    def _answer(self, code: int, node: int, body: bytes) -> bytes | int:
        if code == INIT:
            values = (7, 31, 1 << 16, FLOCK_LOCKS, 12, 10, 1 << 16, 1)
            return struct.pack("<IIIIHHII", *values) + bytes(32)
        if code == LOOKUP:
            if body.rstrip(b"\0").decode() != MANIFEST:
                return errno.ENOENT
            return struct.pack("<QQQQII", FILE, 0, 0, 0, 0, 0) + self._attributes(FILE)
        if code == GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
        if code == OPEN:
            handle = len(self._modes) + 1
            self._modes[handle] = struct.unpack_from("<I", body)[0] & os.O_ACCMODE
            return struct.pack("<QII", handle, 0, 0)
        if code == READ:
            return CONTENT
        if code in (SETLK, SETLKW):
            return self._lock(body)
        if code == RELEASE:
            self._locks.pop(struct.unpack_from("<QIIQ", body)[3], None)
            return b""
        return b"" if code == FLUSH else errno.ENOSYS

    def _lock(self, body: bytes) -> bytes | int:
        handle, owner, _, _, kind, _, _, _ = struct.unpack_from("<QQQQIIII", body)
        if kind == UNLOCK:
            self._locks.pop(owner, None)
            return b""
        exclusive = kind == fcntl.F_WRLCK
        wanted = os.O_RDONLY if exclusive else os.O_WRONLY
        if self._modes[handle] == wanted:
            self.refused += 1
            return errno.EBADF
        others = [held for other, held in self._locks.items() if other != owner]
        if any(others) or (exclusive and others):
            return errno.EAGAIN
        self._locks[owner] = exclusive
        return b""

    def _attributes(self, node: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o644
        size = 0 if node == ROOT else len(CONTENT)
        numbers = (node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
        return struct.pack("<QQQQQQIIIIIIIIII", *numbers)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[tuple[Path, NfsLike]]:
    mounted = NfsLike(tmp_path)
    yield tmp_path, mounted
    mounted.close()


def test_a_model_in_use_is_told_from_one_that_is_not(volume: tuple[Path, NfsLike]) -> None:
    path, mounted = volume
    assert not is_held(path)
    engines = [hold(path), hold(path)]
    for each in engines:
        assert each is not None
        assert is_held(path)
        os.close(each)
    assert not is_held(path)
    assert mounted.refused == 0


def test_the_file_system_refuses_as_nfs_does(volume: tuple[Path, NfsLike]) -> None:
    path, mounted = volume
    with (path / MANIFEST).open("rb") as file, pytest.raises(OSError, match="Bad file") as refused:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert refused.value.errno == errno.EBADF
    assert mounted.refused == 1
