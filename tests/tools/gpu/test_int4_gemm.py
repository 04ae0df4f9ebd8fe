"""Tunings of layers in 4 bits that benchmarks/gpu/int4_gemm.py tries."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

GPU = Path(__file__).parents[3] / "benchmarks" / "gpu"


@pytest.fixture
def int4_gemm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(GPU))
    return import_module("int4_gemm")


def test_no_part_is_without_inputs(int4_gemm: ModuleType) -> None:
    tried = list(int4_gemm.tunings("parts", 1024))
    assert {tuning.parts for tuning in tried} == {1, 2, 4}
    assert {tuning.parts for tuning in int4_gemm.tunings("gated", 1024)} == {1}
    assert len(set(tried)) == len(tried)


@pytest.mark.parametrize("tokens", [1, 8, 16, 17, 64])
def test_what_the_engine_takes_is_among_what_is_tried(int4_gemm: ModuleType, tokens: int) -> None:
    tried = list(int4_gemm.tunings("plain", 4096))
    assert int4_gemm.int4_linear.tuning_for(tokens) in tried
    assert int4_gemm.int4_linear.tuning_for(tokens, gated=True) in tried
