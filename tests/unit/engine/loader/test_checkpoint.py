"""Filling parameters from safetensors: single and sharded files, slices, and damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kvasir_engine.layers.weights import WeightShard, WeightSlot
from kvasir_engine.loader.checkpoint import INDEX, Checkpoint
from kvasir_engine.loader.load_error import ModelLoadError

TENSORS = {
    "a": torch.arange(24.0).view(6, 4),
    "b": torch.arange(100.0, 106.0),
    "rotary_emb.inv_freq": torch.ones(2),
    "extra": torch.ones(1),
}


@pytest.fixture(params=["single", "sharded"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "single":
        save_file(TENSORS, tmp_path / "model.safetensors")
        return tmp_path
    return write_shards(tmp_path)


def write_shards(directory: Path) -> Path:
    files = {"one.safetensors": ["a"], "two.safetensors": ["b", "rotary_emb.inv_freq", "extra"]}
    for file, names in files.items():
        save_file({name: TENSORS[name] for name in names}, directory / file)
    index = {"weight_map": {name: file for file, names in files.items() for name in names}}
    (directory / INDEX).write_text(json.dumps(index))
    return directory


def test_pieces_come_from_their_ranges_in_the_targets_dtype(directory: Path) -> None:
    rows, columns = torch.zeros(2, 4, dtype=torch.bfloat16), torch.zeros(6, 2)
    vector = torch.zeros(6)
    slots = {
        "a": WeightSlot((6, 4), (WeightShard(rows, 0, 3), WeightShard(columns, 1, 2))),
        "b": WeightSlot((6,), (WeightShard(vector),)),
    }
    unused = Checkpoint(directory).fill(slots)
    torch.testing.assert_close(rows, TENSORS["a"][3:5].bfloat16(), atol=0, rtol=0)
    torch.testing.assert_close(columns, TENSORS["a"][:, 2:], atol=0, rtol=0)
    torch.testing.assert_close(vector, TENSORS["b"], atol=0, rtol=0)
    assert unused == ["extra"]


def test_names_are_those_of_slots(directory: Path) -> None:
    target = torch.zeros(6)
    checkpoint = Checkpoint(directory, lambda name: f"model.{name}")
    checkpoint.fill({"model.b": WeightSlot((6,), (WeightShard(target),))})
    torch.testing.assert_close(target, TENSORS["b"], atol=0, rtol=0)


def test_more_tensors_than_one_task_takes(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.tensor([float(i)]) for i in range(100)}
    save_file(tensors, tmp_path / "model.safetensors")
    targets = {name: torch.zeros(1) for name in tensors}
    Checkpoint(tmp_path).fill({n: WeightSlot((1,), (WeightShard(t),)) for n, t in targets.items()})
    assert all(torch.equal(targets[name], tensors[name]) for name in tensors)


def test_missing_weights_are_named_up_to_five(directory: Path) -> None:
    slots = {f"absent.{i}": WeightSlot((1,), (WeightShard(torch.zeros(1)),)) for i in range(9)}
    with pytest.raises(ModelLoadError, match="lacks 9 weights") as caught:
        Checkpoint(directory).fill(slots)
    assert "absent.4" in str(caught.value)
    assert "absent.5" not in str(caught.value)


def test_another_shape_is_refused(directory: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"weight b has shape \[6\].* asks for \[7\]"):
        Checkpoint(directory).fill({"b": WeightSlot((7,), (WeightShard(torch.zeros(7)),))})


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (write_shards(tmp_path) / "two.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"lacks the shard two\.safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["not json", "[]", '{"weight_map": 1}', "{}"])
def test_a_broken_index_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(ModelLoadError, match="not a safetensors index"):
        Checkpoint(tmp_path)


def test_an_index_may_not_leave_its_directory(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(ModelLoadError, match="not a file beside it"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 100, -8])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors cannot be read.*truncated"):
        Checkpoint(tmp_path)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"only pytorch_model\.bin, which is a pickle"):
        Checkpoint(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="--load-format dummy"):
        Checkpoint(tmp_path)


def test_a_second_copy_of_the_weights_is_left_out(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    target = torch.full((1,), 7.0)
    Checkpoint(tmp_path).fill({"a": WeightSlot((1,), (WeightShard(target),))})
    assert target.item() == 1.0
