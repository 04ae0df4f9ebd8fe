"""The zoo's run on a GPU: its model of a step, and how it goes on where it stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvasir.models.hf_config import read_shape
from kvasir_engine.kv.groups import KVGroupSpec

ROOT = Path(__file__).parents[3]


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(ROOT / "e2e" / "gpu"), *sys.path])
    import zoo

    monkeypatch.setattr(zoo, "commit", lambda: "abc")
    return zoo


def test_the_modelled_step_is_that_of_llama_8b(zoo: Any) -> None:
    shape = read_shape(zoo.ZOO / "llama3.1-8b")
    # Matrix products 5.805 ms, 64 contexts of 1,000 tokens of 128 KiB, small kernels.
    want = 5.805 + 64 * 1000 * 131072 / 2.98e9 + 0.35 + 64 * 1.3e-3
    assert zoo.modelled_ms(shape, zoo.RATES["H100"], 64) == pytest.approx(want, rel=1e-3)


def test_windows_and_idle_experts_cost_nothing(zoo: Any) -> None:
    rates = zoo.RATES["H200"]
    windowed, full = (read_shape(zoo.ZOO / name) for name in ("gemma3-4b", "gemma2-2b"))
    assert set(windowed.layer_windows) == {1024, None}
    assert min(filter(None, (*windowed.layer_windows, *full.layer_windows))) > zoo.CONTEXT
    experts = read_shape(zoo.ZOO / "qwen3-30b-a3b")
    one, many = (zoo.modelled_ms(experts, rates, rows) for rows in (1, 64))
    assert one < 3 < 15 < many


def test_no_more_rows_are_timed_than_the_kv_cache_holds(zoo: Any) -> None:
    full, window = KVGroupSpec((0,), 16), KVGroupSpec((1,), 16, 64)
    of_a_row = -(-(zoo.CONTEXT + 2 * zoo.STEPS) // 16)
    enough = 1 + 8192 // 16 + 64 * of_a_row
    assert zoo.rows_that_fit((full,), [enough], 8192) == 64
    assert zoo.rows_that_fit((full,), [enough * 9], 8192) == 64
    assert zoo.rows_that_fit((full,), [enough - 1], 8192) == 63
    assert zoo.rows_that_fit((full,), [of_a_row], 8192) == 1
    # A row keeps a window and two blocks of a layer with a window.
    assert zoo.rows_that_fit((full, window), [enough, 1 + 512 + 10 * 6], 8192) == 10


def test_a_run_goes_on_where_the_last_one_stopped(
    zoo: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    rows = {
        "gemma2-2b": {"failed": "out of memory"},
        "gemma2-9b": {"commit": "abc", "start_s": 2},
        "gemma2-27b": {},
    }

    def child(name: str, seconds: float) -> dict[str, Any]:
        asked.append(name)
        return rows[name]

    monkeypatch.setattr(zoo, "child", child)
    out = tmp_path / "zoo.json"
    out.write_text(json.dumps({"gemma2-2b": {"commit": "abc"}, "gemma2-9b": {"commit": "old"}}))
    names = "gemma2-2b,gemma2-9b,gemma2-27b,gemma3-1b"
    monkeypatch.setattr(sys, "argv", ["zoo.py", "--out", str(out), "--models", names])
    assert zoo.main() == 0
    # The first is known, the third did not end in time.
    assert asked == ["gemma2-9b", "gemma2-27b"]
    assert json.loads(out.read_text())["gemma2-9b"] == rows["gemma2-9b"]
    out.unlink()
    assert zoo.main() == 1
    assert json.loads(out.read_text()).keys() == {"gemma2-2b", "gemma2-9b"}
