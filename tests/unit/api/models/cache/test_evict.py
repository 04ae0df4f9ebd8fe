"""The order in which room is made. What of a volume may go is in the tests of each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kvasir.models.cache.evict import Evictor
from kvasir.models.cache.layout import KERNELS, KERNELS_MARKER, MANIFEST
from kvasir.models.cache.volume import Volume

THINGS = (f"{KERNELS}/a/old", f"{KERNELS}/a/new", "model")


class SmallVolume(Volume):
    """One on which each of THINGS takes a byte."""

    def free_bytes(self) -> int:
        return sum(not (self.root / each / "content").exists() for each in THINGS)


@pytest.fixture
def volume(tmp_path: Path) -> SmallVolume:
    for age, each in enumerate(THINGS):
        (tmp_path / each).mkdir(parents=True)
        (tmp_path / each / "content").write_text("")
        (tmp_path / each / KERNELS_MARKER).touch()
        os.utime(tmp_path / each / KERNELS_MARKER, (age, age))
    manifest = {"source": "hf://org/m@1", "revision": "1", "files": []}
    (tmp_path / "model" / MANIFEST).write_text(json.dumps(manifest))
    return SmallVolume(tmp_path)


def left(volume: Volume) -> list[str]:
    return [each for each in THINGS if (volume.root / each / "content").exists()]


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_former_kernels_go_first_then_others_then_models(volume: SmallVolume, missing: int) -> None:
    assert Evictor(volume, ()).make_room(missing) == 0
    assert left(volume) == list(THINGS[missing:])


def test_what_is_kept_has_no_kernels_of_former_images(volume: SmallVolume) -> None:
    assert Evictor(volume, ()).keep("model", 1) == []
    assert left(volume) == list(THINGS[1:])
