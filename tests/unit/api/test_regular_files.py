"""Files that others write are read up to a bound, and only if they are files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvasir.regular_files import read_regular_file


@pytest.mark.parametrize(("size", "read"), [(0, 0), (7, 7), (8, 8), (9, 9), (10, 9)])
def test_one_byte_more_than_the_bound_shows_that_it_is_longer(
    tmp_path: Path, size: int, read: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    assert read_regular_file(path, 8) == b"x" * read


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular_file(tmp_path / "link", 8) == b"x"


def test_a_pipe_and_a_folder_are_refused_and_closed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match="it is no regular file"):
            read_regular_file(tmp_path / name, 8)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_nothing_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular_file(tmp_path / "absent", 8)
