"""Which layers benchmarks/gpu/skinny_gemm.py times, and the table that it writes."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

GPU = Path(__file__).parents[3] / "benchmarks" / "gpu"
ZOO = GPU.parent / "models" / "zoo"


@pytest.fixture
def skinny_gemm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(GPU))
    return import_module("skinny_gemm")


def test_layers_before_a_norm_or_a_rotation_may_be_in_parts(skinny_gemm: ModuleType) -> None:
    assert list(skinny_gemm.shapes(ZOO / "qwen3-0.6b")) == [
        (4096, 1024, "parts"),
        (1024, 2048, "parts"),
        (6144, 1024, "gated"),
        (1024, 3072, "parts"),
        (151936, 1024, "plain"),
    ]


def test_shapes_that_are_like_another_of_their_form_are_not_timed(skinny_gemm: ModuleType) -> None:
    shapes = [(64, 512, "plain"), (64, 576, "plain"), (64, 576, "gated"), (64, 2048, "plain")]
    assert skinny_gemm.unlike(shapes, [(64, 2000, "plain")]) == [shapes[0], shapes[2]]


def test_a_table_keeps_the_lines_of_other_shapes(skinny_gemm: ModuleType, tmp_path: Path) -> None:
    table = tmp_path / "skinny.json"
    tuning = [16, 128, 1, 4, 512, 1]
    table.write_text(json.dumps([[64, 512, "plain", 8, *tuning], [64, 512, "parts", 8, *tuning]]))
    result = {"outputs": 64, "inputs": 512, "tokens": 8, "tuning": [16, 128, 1, 4, 256, 2]}
    won = {**result, "form": "parts", "us": 5.0, "other_us": 6.0}
    lost = {**result, "form": "gated", "us": 6.0, "other_us": 6.0}
    skinny_gemm.write_table([won, lost], table)
    assert json.loads(table.read_text()) == [
        [64, 512, "plain", 8, *tuning],
        [64, 512, "parts", 8, 16, 128, 1, 4, 256, 2],
        [64, 512, "gated", 8],
    ]
