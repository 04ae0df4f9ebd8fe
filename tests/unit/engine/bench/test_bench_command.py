from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from kvasir_engine.bench.bench_command import app
from kvasir_engine.loader.model_directory import resolve_model


def test_a_row_for_each_kind_of_step() -> None:
    tiny = str(resolve_model("builtin://kvasir-tiny"))
    sizes = ["--batch", "3", "--context", "20", "--prompt", "24", "--max-num-batched-tokens", "48"]
    result = CliRunner().invoke(app, ["engine", tiny, "--device", "cpu", *sizes])
    assert result.exit_code == 0, result.output
    table = [line.split("|") for line in result.stdout.splitlines() if line.startswith("|")][2:]
    kinds = [cells[1].strip() for cells in table]
    assert kinds == ["decode", "decode, common prefix", "prefill", "mixed"]
    for cells in table:
        wall, host = map(float, cells[2:4])
        assert 0 < host <= wall


def test_a_profile_needs_a_gpu(tmp_path: Path) -> None:
    tiny = str(resolve_model("builtin://kvasir-tiny"))
    given = ["engine", tiny, "--device", "cpu", "--profile", str(tmp_path / "traces")]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert "--profile traces a GPU" in result.output


def test_a_directory_that_is_no_model(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["engine", str(tmp_path), "--device", "cpu"])
    assert result.exit_code == 2
    assert "config.json" in result.output
