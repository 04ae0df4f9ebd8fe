from __future__ import annotations

from pathlib import Path

import pytest

from kvasir.atomic_files import write_atomic


def test_the_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_text("old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        write_atomic(path, b"new")
    assert list(tmp_path.iterdir()) == [path]
