"""Locks of models in use, also by NFS's rules."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvasir.models.cache.layout import KERNELS_MARKER, MANIFEST
from kvasir.models.cache.use_lock import exclusive, hold, hold_kernels, is_held

real_flock = fcntl.flock


def nfs_flock(descriptor: int, operation: int) -> None:
    """Refuse as NFS does, where flock is a lock of bytes: for writing only to who may write."""
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    if (operation & fcntl.LOCK_EX and mode == os.O_RDONLY) or (
        operation & fcntl.LOCK_SH and mode == os.O_WRONLY
    ):
        raise OSError(errno.EBADF, "Bad file descriptor")
    real_flock(descriptor, operation)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / MANIFEST).write_text("{}")
    return tmp_path


@pytest.mark.parametrize("rules", [real_flock, nfs_flock])
def test_held_while_somebody_holds_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, rules: object
) -> None:
    monkeypatch.setattr(fcntl, "flock", rules)
    before = (model / MANIFEST).stat()
    assert not is_held(model)
    engines = [hold(model), hold(model)]
    for each in engines:
        assert is_held(model)
        assert each is not None
        os.close(each)
    assert not is_held(model)
    after = (model / MANIFEST).stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)


def test_what_is_not_there_is_not_held(tmp_path: Path) -> None:
    assert hold(tmp_path) is None
    assert not is_held(tmp_path)


def test_what_cannot_be_told_counts_as_held(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert is_held(model)
    assert "No locks available" in caplog.text


@pytest.mark.parametrize("rules", [real_flock, nfs_flock])
def test_kernels_are_held_by_a_marker_that_the_first_engine_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: object
) -> None:
    monkeypatch.setattr(fcntl, "flock", rules)
    directory = tmp_path / "image"
    engines = [hold_kernels(directory), hold_kernels(directory)]
    marker = directory / KERNELS_MARKER
    for each in engines:
        with exclusive(marker) as mine:
            assert not mine
        assert each is not None
        os.close(each)
    with exclusive(marker) as mine:
        assert mine


def test_an_engine_waits_for_who_removes_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = hold_kernels(tmp_path)
    assert first is not None
    os.close(first)
    with ExitStack() as removal:
        assert removal.enter_context(exclusive(tmp_path / KERNELS_MARKER))
        monkeypatch.setattr("time.sleep", lambda _: removal.close())
        assert hold_kernels(tmp_path) is not None
    with exclusive(tmp_path / KERNELS_MARKER) as mine:
        assert not mine


def test_a_start_notes_when_kernels_were_used_last(tmp_path: Path) -> None:
    hold_kernels(tmp_path)
    os.utime(tmp_path / KERNELS_MARKER, (1, 1))
    hold_kernels(tmp_path)
    assert (tmp_path / KERNELS_MARKER).stat().st_mtime > 1


def test_a_cache_that_cannot_be_written_to_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert hold_kernels(tmp_path / "file" / "image") is None
