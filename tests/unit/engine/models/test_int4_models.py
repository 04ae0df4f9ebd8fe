"""Native families with weights in 4 bits against the same numbers as plain weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines.int4_checkpoints import TOOLS, Int4Checkpoint, Rounding, Tool

from kvasir.models.config_overrides import ConfigOverrides
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.loader.load_model import load_model
from kvasir_engine.quantization.int4 import Int4Linear
from kvasir_engine.quantization.plain import PLAIN

TOKENS = [7 * i % 160 for i in range(40)]


@pytest.fixture
def saved(hf_model_dir, tmp_path):
    """saved(name, how, tool, ignored): a directory of the checkpoint and of its numbers, plain."""

    def save(name: str, how: Rounding, tool: Tool, ignored: tuple[str, ...] = ()) -> Path:
        Int4Checkpoint(hf_model_dir(name), tmp_path, how, tool, [*ignored]).save()
        return tmp_path

    return save


def logits(paged_model, directory: Path) -> torch.Tensor:
    step: torch.Tensor = paged_model(load_model(directory).model).step({"a": TOKENS})["a"]
    return step


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", ["llama31", "phi3", "mixtral", "qwen3_moe"])
def test_logits_are_those_of_the_dequantised_numbers(name, tool, saved, paged_model) -> None:
    directory = saved(name, Rounding(32), tool)

    got, want = (logits(paged_model, directory / kind) for kind in ("int4", "plain"))

    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tool", ["gptq", "compressed-tensors"])
def test_reordered_inputs(tool, saved, paged_model) -> None:
    directory = saved("qwen3", Rounding(32, symmetric=True, reordered=True), tool)

    got, want = (logits(paged_model, directory / kind) for kind in ("int4", "plain"))

    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_reordered_experts_are_refused(saved) -> None:
    directory = saved("qwen3_moe", Rounding(32, symmetric=True, reordered=True), "gptq")
    with pytest.raises(
        ModelLoadError, match=r"experts .* are not supported; use a checkpoint without it"
    ):
        load_model(directory / "int4")


@pytest.mark.parametrize("tool", TOOLS)
def test_ignored_layers_stay_plain(tool, saved, paged_model) -> None:
    directory = saved("llama3", Rounding(32), tool, ("down_proj",))

    model: Any = load_model(directory / "int4").model

    layer = model.model.layers[1]
    assert layer.mlp.down_proj.method is PLAIN
    assert isinstance(layer.mlp.gate_up_proj.method, Int4Linear)
    got = paged_model(model).step({"a": TOKENS})["a"]
    torch.testing.assert_close(got, logits(paged_model, directory / "plain"), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [".mlp.up_proj.scales", ".mlp.up_proj.qzeros"])
def test_what_is_missing_is_named(name: str, saved) -> None:
    file = saved("llama3", Rounding(32), "awq") / "int4" / "model.safetensors"
    tensors = load_file(file)
    del tensors[f"model.layers.1{name}"]
    save_file(tensors, file)

    with pytest.raises(ModelLoadError, match=rf"lacks 1 weights .* such as \S*1{name}; the config"):
        load_model(file.parent)


def test_zero_points_that_are_all_alike_are_not_missed(saved, caplog) -> None:
    directory = saved("llama3", Rounding(32, symmetric=True), "gptq")

    load_model(directory / "int4")

    assert "not used" not in caplog.text


def test_another_group_than_the_configs_is_named(saved) -> None:
    directory = saved("llama3", Rounding(32), "awq") / "int4"
    config = directory / "config.json"
    config.write_text(config.read_text().replace('"group_size": 32', '"group_size": 64'))
    with pytest.raises(ModelLoadError, match=r"has shape .* where config.json asks for"):
        load_model(directory)


def test_dummy_weights(saved, paged_model) -> None:
    directory = saved("mixtral", Rounding(32), "awq")
    model: Any = load_model(directory / "int4", load_format="dummy").model
    assert paged_model(model).step({"a": TOKENS})["a"].isfinite().all()


def test_a_format_may_be_asked_for_by_its_name(saved, paged_model) -> None:
    directory = saved("llama3", Rounding(32), "gptq") / "int4"
    assert load_model(directory, overrides=ConfigOverrides(quantization="gptq"))
    with pytest.raises(ModelLoadError, match=r"--quantization awq: .* are gptq"):
        load_model(directory, overrides=ConfigOverrides(quantization="awq"))
