from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvasir_engine.device.kernel_cache import use_kernel_cache


def test_kernels_are_kept_where_models_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "unset after the test")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    assert use_kernel_cache() == tmp_path / "triton"
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")


def test_tritons_own_variable_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert use_kernel_cache() == tmp_path
