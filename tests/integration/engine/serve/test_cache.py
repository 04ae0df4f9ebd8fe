"""An engine and the cache volume that its model lies on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvasir_engine
from kvasir.models.cache.evict import Evictor
from kvasir.models.cache.kept_kernels import remove_all
from kvasir.models.cache.volume import Volume

TINY = Path(kvasir_engine.__file__).parent / "assets" / "tiny"


@pytest.mark.slow
def test_a_model_is_not_evicted_while_an_engine_serves_it(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    volume = Volume(tmp_path / "volume")
    for name in ("used", "wanted"):
        shutil.copytree(TINY, volume.directory(name))
        manifest = {"source": f"hf://org/tiny@{name}", "revision": f"commit-of-{name}", "files": []}
        (volume.directory(name) / "kvasir-model.json").write_text(json.dumps(manifest))
    evictor = Evictor(volume, ["wanted"])
    used = volume.directory("used")
    served = serve(str(used), "--device", "sim")
    assert served.get("/v1/models").json()["data"][0]["revision"] == "commit-of-used"
    assert evictor.keep("wanted", 1) == []
    assert served.stop() == 0
    assert evictor.keep("wanted", 1) == ["used"]
    assert not used.exists()


@pytest.mark.slow
def test_kernels_are_not_removed_while_an_engine_uses_them(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / ".kernels" / "m" / "image"
    monkeypatch.setenv("KVASIR_CACHE", str(kept))
    served = serve(str(TINY), "--device", "cpu")
    (kept / "kernel").write_text("code")
    assert remove_all(tmp_path) == []
    assert served.stop() == 0
    assert remove_all(tmp_path) == [kept]
    assert not (kept / "kernel").exists()
