"""Rows read through two small buffers, and files that end too early."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kvasir_engine.layers.weights import WeightShard
from kvasir_engine.loader import safetensors_stream

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tensors = {
        "wide": torch.arange(70.0).view(10, 7),
        "half": torch.arange(24).bfloat16().view(6, 4),
        "whole": torch.arange(6),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("buffer_bytes", [1, 2 * 7 * 4, 1 << 20])
def test_rows_come_whole_through_buffers_of_any_size(file, monkeypatch, buffer_bytes: int) -> None:
    monkeypatch.setattr(safetensors_stream, "BUFFER_BYTES", buffer_bytes)
    opened, buffers = safetensors_stream.TensorFile(file), safetensors_stream.PinnedBuffers(DEVICE)
    target = torch.zeros(6, 7, device=DEVICE)
    opened.read("wide", WeightShard(target, 0, 3), buffers)
    # Another type than the file's.
    halves = torch.zeros(6, 4, dtype=torch.float32, device=DEVICE)
    opened.read("half", WeightShard(halves), buffers)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    opened.close()
    assert torch.equal(target.cpu(), torch.arange(70.0).view(10, 7)[3:9])
    assert torch.equal(halves.cpu(), torch.arange(24.0).view(6, 4))


def test_what_is_no_run_of_bytes_is_not_streamed(file) -> None:
    opened = safetensors_stream.TensorFile(file)
    wide, whole = opened.tensors["wide"], opened.tensors["whole"]
    opened.close()
    assert wide.streams(WeightShard(torch.zeros(2, 7)))
    assert not wide.streams(WeightShard(torch.zeros(10, 2), 1, 3))
    assert not whole.streams(WeightShard(torch.zeros(6))), "integers are no weights"


def test_a_file_that_ends_too_early_says_where(file) -> None:
    with file.open("r+b") as raw:
        raw.truncate(file.stat().st_size - 40)
    opened = safetensors_stream.TensorFile(file)
    last = max(opened.tensors, key=lambda name: opened.tensors[name].begin)
    target = torch.zeros(opened.tensors[last].shape)
    with pytest.raises(OSError, match="ends at byte"):
        opened.read(
            last, WeightShard(target), safetensors_stream.PinnedBuffers(torch.device("cpu"))
        )
    opened.close()
