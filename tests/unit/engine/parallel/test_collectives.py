"""Tensor parallel over gloo: sharded layers give the logits of the whole model."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvasir_engine.device import collectives
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.loader.load_model import load_model

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
FAMILIES = ["llama31", "qwen3_one_kv_head", "gemma2", "phi3", "mixtral", "olmo2", "gpt_oss"]


WITH_EXPERTS = ["mixtral", "qwen3_moe"]


def logits_by_rank(
    where: Path, experts: str, directories: dict[str, Path]
) -> list[dict[str, torch.Tensor]]:
    """What each of two rank processes computed, by family; experts are "sharded" or "whole"."""
    outs = [where / str(rank) for rank in range(2)]
    models = [str(directory) for directory in directories.values()]
    fixed = [sys.executable, str(HERE / "rank.py"), str(HERE / "steps.py"), str(where / "store")]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [*fixed, str(rank), "2", str(out), experts, *models], env=env, stderr=subprocess.PIPE
        )
        for rank, out in enumerate(outs)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=200)
            assert process.returncode == 0, errors.decode()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [dict(zip(directories, torch.load(out, weights_only=True), strict=True)) for out in outs]


@pytest.fixture(scope="module")
def logits_of_ranks(hf_model_dir, tmp_path_factory) -> list[dict[str, torch.Tensor]]:
    """Logits of both ranks, by family."""
    directories = {name: hf_model_dir(name) for name in FAMILIES}
    return logits_by_rank(tmp_path_factory.mktemp("ranks"), "sharded", directories)


def whole_logits(directory: Path) -> torch.Tensor:
    """Logits of the model in one process."""
    logits: torch.Tensor = runpy.run_path(str(HERE / "steps.py"))["run"](
        load_model(directory).model
    )
    return logits


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_ranks_equal_the_whole_models(name, hf_model_dir, logits_of_ranks) -> None:
    whole = whole_logits(hf_model_dir(name))
    for rank in logits_of_ranks:
        torch.testing.assert_close(rank[name], whole, atol=1e-4, rtol=1e-4)


def test_ranks_with_whole_experts_compute_the_same(hf_model_dir, tmp_path: Path) -> None:
    directories = {name: hf_model_dir(name) for name in WITH_EXPERTS}
    for rank in logits_by_rank(tmp_path, "whole", directories):
        for name, directory in directories.items():
            torch.testing.assert_close(rank[name], whole_logits(directory), atol=1e-4, rtol=1e-4)


@pytest.fixture
def _three_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank=1, size=3))


@pytest.mark.usefixtures("_three_ranks")
def test_heads_that_cannot_be_divided_are_refused(hf_model_dir) -> None:
    with pytest.raises(ModelLoadError, match="tensor-parallel-size"):
        load_model(hf_model_dir("llama3"))


@pytest.mark.usefixtures("_three_ranks")
def test_the_transformers_backend_is_for_one_rank(hf_model_dir) -> None:
    with pytest.raises(ModelLoadError, match="tensor-parallel-size 1 only"):
        load_model(hf_model_dir("starcoder2"))


def test_a_rank_outside_the_group_is_refused() -> None:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="rank must be 0 to 1"):
        collectives.init_tensor_parallel(2, 2, store=store, device=torch.device("cpu"))
