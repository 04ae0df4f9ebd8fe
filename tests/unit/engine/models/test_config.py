"""Rotary fields as transformers 5 writes them and as older configs do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvasir_engine.layers.rotary import RotaryConfig
from kvasir_engine.models.config import model_config
from kvasir_engine.models.families.gemma3 import local_rotary
from kvasir_engine.models.families.phi3 import Phi3ForCausalLM

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}


def rotary(**fields: Any) -> RotaryConfig:
    return model_config({"model_type": "llama", **SIZES, **fields}).rotary(500.0)


def test_without_fields_the_familys_default_holds() -> None:
    assert (rotary().theta, rotary().kind, rotary().rotary_dim) == (500.0, "default", 16)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 7.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}},
    ],
)
def test_old_and_new_names(fields: dict[str, Any]) -> None:
    config = rotary(**fields)
    assert (config.theta, config.kind, config.scaling["factor"]) == (7.0, "linear", 2.0)


@pytest.mark.parametrize(
    "fields",
    [{"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}],
)
def test_part_of_a_head_is_rotated(fields: dict[str, Any]) -> None:
    assert rotary(**fields).rotary_dim == 8


def test_original_length_beside_the_scaling_or_in_it() -> None:
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 64}
    assert rotary(rope_scaling=scaling).original_length == 64
    assert rotary(rope_scaling=scaling, original_max_position_embeddings=32).original_length == 32
    assert rotary().original_length == 256


def test_the_longest_served_sequence_is_the_models_unless_it_is_given() -> None:
    fields = {"model_type": "llama", **SIZES}
    assert model_config(fields).rotary().max_model_len == 256
    assert model_config(fields, 128).rotary().max_model_len == 128


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
    ],
)
def test_gemma3_has_two_bases(fields: dict[str, Any]) -> None:
    config = model_config({"model_type": "gemma3_text", **SIZES, "head_dim": 16, **fields})
    assert config.rotary(1e6, "full_attention").theta == 1e6
    assert local_rotary(config).theta == 1e4


def test_gemma3_scales_full_layers_only() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    config = model_config({"model_type": "gemma3_text", **SIZES, "rope_scaling": scaling})
    assert config.rotary(1e6, "full_attention").kind == "linear"
    assert local_rotary(config).kind == "default"


@pytest.mark.parametrize("name", ["su", "yarn", "longrope"])
def test_phi3_called_longrope_by_other_names(name: str, hf_model_dir) -> None:
    fields = json.loads((hf_model_dir("phi3_long") / "config.json").read_text())
    scaling = {**fields.pop("rope_parameters"), "type": name}
    scaling.pop("rope_type")
    config = model_config({**fields, "rope_scaling": scaling})
    [rotary] = Phi3ForCausalLM(config).rotary(config)
    assert rotary.kind == "longrope"
