"""Which kernels go, and that none go which somebody uses."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kvasir.models.cache.kept_kernels import remove_all, remove_former
from kvasir.models.cache.layout import KERNELS, KERNELS_MARKER
from kvasir.models.cache.use_lock import exclusive, hold_kernels


def kernels(root: Path, place: str, age: int, *, marker: bool = True) -> Path:
    """A directory NAME/IMAGE, used so many seconds after 1970."""
    directory = root / KERNELS / place
    (directory / "triton").mkdir(parents=True)
    (directory / "triton" / "k.cubin").write_text("code")
    (directory / "gemm.json").write_text("{}")
    if marker:
        (directory / KERNELS_MARKER).touch()
        os.utime(directory / KERNELS_MARKER, (age, age))
    return directory


def left(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


WHOLE = ["gemm.json", KERNELS_MARKER, "triton"]


def test_each_deployment_keeps_the_kernels_that_it_used_last(tmp_path: Path) -> None:
    a = [kernels(tmp_path, f"a/{n}", age) for n, age in enumerate((20, 30, 10))]
    b = kernels(tmp_path, "b/0", 1)
    assert remove_former(tmp_path) == [a[2], a[0]]
    assert [left(each) for each in (*a, b)] == [[KERNELS_MARKER], WHOLE, [KERNELS_MARKER], WHOLE]
    assert remove_former(tmp_path) == []
    assert remove_all(tmp_path) == [a[1], b]


def test_a_directory_stays_for_a_pod_that_has_it_mounted(tmp_path: Path) -> None:
    former = kernels(tmp_path, "a/0", 1)
    kernels(tmp_path, "a/1", 2)
    inode = former.stat().st_ino
    remove_former(tmp_path)
    assert former.stat().st_ino == inode


def test_what_an_engine_uses_stays(tmp_path: Path) -> None:
    used, former = kernels(tmp_path, "a/0", 1), kernels(tmp_path, "a/1", 2)
    engine = hold_kernels(used)
    assert engine is not None
    os.utime(used / KERNELS_MARKER, (1, 1))
    assert remove_former(tmp_path) == []
    assert remove_all(tmp_path) == [former]
    os.close(engine)
    assert remove_all(tmp_path) == [used]


def test_what_has_no_marker_may_be_in_use(tmp_path: Path) -> None:
    unmarked = kernels(tmp_path, "a/0", 0, marker=False)
    marked = kernels(tmp_path, "a/1", 2)
    assert remove_all(tmp_path) == [marked]
    assert left(unmarked) == ["gemm.json", "triton"]


def test_nobody_begins_to_use_kernels_while_they_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = kernels(tmp_path, "a/0", 1)
    locked = []
    remove = shutil.rmtree

    def removing(path: Path, **options: Any) -> None:
        with exclusive(former / KERNELS_MARKER) as mine:
            locked.append(not mine)
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", removing)
    assert remove_all(tmp_path) == [former]
    assert locked == [True]


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("")
    former = kernels(tmp_path, "a/0", 1)
    (former / "link").symlink_to(tmp_path / "model")
    assert remove_all(tmp_path) == [former]
    assert left(tmp_path / "model") == ["weights"]


def test_a_volume_without_kernels_has_none_to_remove(tmp_path: Path) -> None:
    assert remove_all(tmp_path) == []
