from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvasir_engine.bench.bench_command import app
from kvasir_engine.bench.engine import Shape, _mixed, _prompts
from kvasir_engine.bench.steps import Steps
from kvasir_engine.core.build import build_core
from kvasir_engine.loader.model_directory import resolve_model
from kvasir_engine.settings import make_settings


@pytest.mark.slow
def test_a_row_for_each_kind_of_step() -> None:
    tiny = str(resolve_model("builtin://kvasir-tiny"))
    sizes = ["--batch", "3", "--context", "20", "--prompt", "24", "--max-num-batched-tokens", "48"]
    result = CliRunner().invoke(app, ["engine", tiny, "--device", "cpu", *sizes])
    assert result.exit_code == 0, result.output
    table = [line.split("|") for line in result.stdout.splitlines() if line.startswith("|")][2:]
    kinds = [cells[1].strip() for cells in table]
    assert kinds == ["decode", "decode, shared prefix", "prefill", "mixed"]
    for cells in table:
        wall, host = map(float, cells[2:4])
        assert 0 < host <= wall


@pytest.mark.slow
def test_what_is_measured_is_said_as_it_goes() -> None:
    tiny = str(resolve_model("builtin://kvasir-tiny"))
    given = ["engine", tiny, "--device", "cpu", "--batch", "2", "--prompt", "64"]
    result = CliRunner().invoke(app, [*given, "--context", "100"])
    assert result.exit_code == 0, result.output
    said = [line for line in result.stderr.splitlines() if line.startswith("measuring: ")]
    kinds = ["decode", "decode, shared prefix", "prefill", "mixed"]
    assert said == [f"measuring: {kind}" for kind in kinds]


@pytest.mark.parametrize("prepare", [_prompts, _mixed])
@pytest.mark.parametrize("shape", [Shape(2, 100, 64), Shape(1, 100, 200), Shape(64, 100, 32)])
def test_no_more_prompts_wait_than_a_step_can_take(prepare: Any, shape: Shape) -> None:
    tiny = resolve_model("builtin://kvasir-tiny")
    settings = make_settings(
        str(tiny),
        device="sim",
        max_num_seqs=shape.batch,
        max_num_batched_tokens=128,
        num_blocks=2000,
    )
    core = build_core(settings, tiny)
    steps = Steps(core)
    before_each = prepare(steps, shape)
    computed = core.scheduler.counters.computed_tokens
    for _ in range(50):
        before_each()
        assert len(core.scheduler.waiting) <= max(1, min(shape.batch, 128 // shape.prompt))
        core.loop.step()
    assert core.scheduler.counters.computed_tokens > computed


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
