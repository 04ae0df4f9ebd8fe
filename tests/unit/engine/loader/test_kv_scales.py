"""Scales of a float8 KV cache as the tools name them, and what is wrong with a checkpoint's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kvasir_engine.kv.cache_spec import KVScales
from kvasir_engine.loader.kv_scales import read_kv_scales
from kvasir_engine.loader.load_error import ModelLoadError

NAMES = {
    "llm-compressor": "model.layers.{}.self_attn.{}_scale",
    "modelopt": "model.layers.{}.self_attn.{}_proj.{}_scale",
}


def write(directory: Path, name: str, scales: dict[tuple[int, str], float | list[float]]) -> None:
    made = {
        name.format(layer, kind, kind): torch.tensor(scale)
        for (layer, kind), scale in scales.items()
    }
    made["model.layers.0.self_attn.k_proj.weight_scale"] = torch.tensor(7.0)
    made["model.layers.0.self_attn.q_proj.input_scale"] = torch.tensor(7.0)
    save_file(made, directory / "model.safetensors")


@pytest.mark.parametrize("tool", NAMES)
def test_every_layer_has_its_own(tmp_path: Path, tool: str) -> None:
    write(tmp_path, NAMES[tool], {(0, "k"): 0.5, (0, "v"): 0.25, (1, "k"): 2.0, (1, "v"): 1.0})
    assert read_kv_scales(tmp_path, 2) == [KVScales(0.5, 0.25), KVScales(2.0, 1.0)]


def test_of_single_heads_the_largest_is_taken(tmp_path: Path) -> None:
    write(tmp_path, NAMES["llm-compressor"], {(0, "k"): [0.5, 0.75], (0, "v"): [1.0]})
    assert read_kv_scales(tmp_path, 1) == [KVScales(0.75, 1.0)]


def test_a_checkpoint_without_any(tmp_path: Path) -> None:
    write(tmp_path, NAMES["modelopt"], {})
    assert read_kv_scales(tmp_path, 2) is None


def test_a_missing_one_is_named(tmp_path: Path) -> None:
    write(tmp_path, NAMES["modelopt"], {(0, "k"): 0.5, (0, "v"): 0.25, (1, "k"): 2.0})
    with pytest.raises(ModelLoadError, match="no v_scale of layer 1; the download is incomplete"):
        read_kv_scales(tmp_path, 2)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_one_that_is_no_scale_is_refused(tmp_path: Path, scale: float) -> None:
    write(tmp_path, NAMES["modelopt"], {(0, "k"): scale, (0, "v"): 0.25})
    with pytest.raises(ModelLoadError, match=r"k_scale is .* where a scale is a positive number"):
        read_kv_scales(tmp_path, 1)
