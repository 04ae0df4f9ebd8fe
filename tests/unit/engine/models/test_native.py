"""Every native family against transformers."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir_engine.loader.load_model import load_model
from kvasir_engine.models.decoder import DecoderForCausalLM

FAMILIES = [
    "llama2",
    "llama3",
    "llama31",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "phi3_long",
    "mixtral",
    "qwen3_moe",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers(name, compare, hf_model_dir, hf_logits, paged_model) -> None:
    loaded = load_model(hf_model_dir(name))
    assert isinstance(loaded.model, DecoderForCausalLM)
    compare(paged_model(loaded.model), lambda tokens: hf_logits(name, tokens))


def test_specs_follow_the_config(hf_model_dir) -> None:
    loaded = load_model(hf_model_dir("gemma3"))
    windows = [spec.window for spec in loaded.model.attention_specs]
    assert windows == [18, 18, 18, 18, 18, None, 18]
    spec = loaded.model.attention_specs[5]
    assert (spec.layer, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (5, 4, 2, 16)


def test_one_layer_of_a_kind_is_kept(hf_model_dir) -> None:
    # Layers with windows and without, each with a rotary table of its own.
    model: Any = load_model(hf_model_dir("gemma3")).model
    windows = [spec.window for spec in model.attention_specs]
    model.keep_distinct_layers()
    kept = [layer.self_attn.spec for layer in model.model.layers]
    assert [(spec.layer, spec.window) for spec in kept] == [(0, 18), (5, None)]
    assert len(set(model.model.rotary_of_layer)) == 2
    # Caches are made for all.
    assert [spec.window for spec in model.attention_specs] == windows
