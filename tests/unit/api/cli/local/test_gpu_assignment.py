"""The GPUs of this machine, and who gets which."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvasir.cli.local.gpu_assignment import GPUShortageError, assign_gpus, visible_gpus


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only nvidia-smi there is, which knows two GPUs."""
    path = tmp_path / "nvidia-smi"
    path.write_text("#!/bin/sh\nprintf '0\\n1\\n'\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return path


def test_the_driver_is_asked_only_without_a_choice(tool: Path) -> None:
    assert visible_gpus({}) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": " 3, GPU-x"}) == ["3", "GPU-x"]


@pytest.mark.parametrize("choice", ["", "-1", ","])
def test_no_gpu_may_be_chosen(tool: Path, choice: str) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": choice}) == []


def test_a_machine_without_a_driver_has_none(tool: Path) -> None:
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert visible_gpus({}) == []
    tool.unlink()
    assert visible_gpus({}) == []


def test_each_replica_gets_others_in_order() -> None:
    assert list(assign_gpus([2, 0, 1], ["a", "b", "c", "d"])) == [["a", "b"], [], ["c"]]
    assert list(assign_gpus([], [])) == []


def test_a_shortage_says_how_many_of_each() -> None:
    with pytest.raises(GPUShortageError, match=r"asks for 3 GPUs .* has 2; lower spec\.replicas"):
        list(assign_gpus([2, 1], ["a", "b"]))
