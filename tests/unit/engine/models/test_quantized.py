"""Native families in float8 against transformers' with the same numbers."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines.quantized_reference import (
    quantized_linears,
    quantized_tensors,
    tensors_in_blocks,
)
from support.engines.random_models import MODELS, save_hf_model
from transformers import AutoModelForCausalLM

from kvasir.models.config_overrides import ConfigOverrides
from kvasir_engine.device.float8 import FP8
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.loader.load_model import load_model

ONLINE = ConfigOverrides(quantization="fp8")
TOKENS = [7 * i % 160 for i in range(40)]


@pytest.fixture
def reference(hf_model_dir):
    def logits(name: str) -> torch.Tensor:
        model = AutoModelForCausalLM.from_pretrained(
            hf_model_dir(name), attn_implementation="eager", dtype=torch.float32
        )
        # Not by one operation for all experts, which would not be quantised.
        model.set_experts_implementation("eager")
        with torch.inference_mode(), quantized_linears(model, "gate.weight"):
            return model(torch.tensor([TOKENS])).logits[0]

    return logits


def distance(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize(
    "name", ["llama31", "qwen3", "gemma2", "olmo2", "phi3", "exaone4", "mixtral", "qwen3_moe"]
)
def test_plain_checkpoints_are_quantised_as_they_load(
    name, hf_model_dir, hf_logits, paged_model, reference
) -> None:
    model = load_model(hf_model_dir(name), overrides=ONLINE).model

    got = paged_model(model).step({"a": TOKENS})["a"]

    want = reference(name)
    lost = distance(want, hf_logits(name, TOKENS))
    assert lost > 0.01, "nothing is quantised"
    # A number in the middle of two may be rounded to either.
    assert distance(got, want) < 0.25 * lost


def save_quantized(source, target, *, by_tensor: bool = False) -> None:
    """A checkpoint as compressed-tensors writes it."""
    weights = {"num_bits": 8, "type": "float", "strategy": "tensor" if by_tensor else "channel"}
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = quantization
    (target / "config.json").write_text(json.dumps(config))
    tensors = quantized_tensors(load_file(source / "model.safetensors"), by_tensor=by_tensor)
    save_file(tensors, target / "model.safetensors")


def test_a_quantised_checkpoint_is_what_loading_would_have_made_of_the_plain_one(
    hf_model_dir, paged_model, tmp_path
) -> None:
    save_quantized(hf_model_dir("qwen3"), tmp_path)
    models = [
        load_model(tmp_path).model,
        load_model(hf_model_dir("qwen3"), overrides=ONLINE).model,
    ]

    stored, online = (paged_model(model).step({"a": TOKENS})["a"] for model in models)

    assert torch.equal(stored, online)


def test_scales_of_whole_matrices(hf_model_dir, hf_logits, paged_model, tmp_path) -> None:
    save_quantized(hf_model_dir("llama3"), tmp_path, by_tensor=True)
    model: Any = load_model(tmp_path).model

    got = paged_model(model).step({"a": TOKENS})["a"]

    assert distance(got, hf_logits("llama3", TOKENS)) < 0.25
    assert model.model.layers[0].mlp.down_proj.weight.dtype == FP8


@pytest.mark.parametrize("name", ["llama3", "qwen3", "qwen3_moe"])
def test_scales_of_blocks(name, paged_model, hf_logits, tmp_path) -> None:
    kind, fields = MODELS[name]
    wide = {
        "hidden_size": 256,
        "intermediate_size": 384,
        "head_dim": 64,
        "moe_intermediate_size": 128,
        "initializer_range": 0.05,
    }
    plain, blocks = tmp_path / "plain", tmp_path / "blocks"
    with patch.dict(MODELS, {name: (kind, {**fields, **wide})}):
        save_hf_model(name, plain)
    blocks.mkdir()
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (blocks / "config.json").write_text(json.dumps(config))
    save_file(
        tensors_in_blocks(load_file(plain / "model.safetensors")), blocks / "model.safetensors"
    )

    want, got, online = (
        paged_model(load_model(path, overrides=overrides).model).step({"a": TOKENS})["a"]
        for path, overrides in ((plain, None), (blocks, None), (plain, ONLINE))
    )

    assert 0.005 < distance(got, want) < 1.3 * distance(online, want)


def test_a_scale_that_is_missing_is_named(hf_model_dir, tmp_path) -> None:
    save_quantized(hf_model_dir("llama3"), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_proj.weight_scale"]
    save_file(tensors, tmp_path / "model.safetensors")

    with pytest.raises(
        ModelLoadError, match=r"lacks 1 weights .*1\.self_attn\.q_proj\.weight_scale"
    ):
        load_model(tmp_path)


def test_dummy_weights(hf_model_dir, paged_model) -> None:
    mixtral = hf_model_dir("mixtral")
    model: Any = load_model(mixtral, load_format="dummy", overrides=ONLINE).model

    assert paged_model(model).step({"a": TOKENS})["a"].isfinite().all()
    down = model.model.layers[0].mlp.down
    assert down.weight.dtype == FP8
    assert 0.01 < (down.weight.float() * down.weight_scale).abs().max() <= 0.0201


def test_what_runs_through_transformers_is_refused(hf_model_dir) -> None:
    with pytest.raises(
        ModelLoadError, match=r"Starcoder2ForCausalLM runs .* leave out --quantization"
    ):
        load_model(hf_model_dir("starcoder2"), load_format="dummy", overrides=ONLINE)
