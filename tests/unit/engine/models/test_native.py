"""Every native family against transformers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvasir_engine.loader.load_error import ModelLoadError
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
    "olmo2",
    "granite",
    "exaone4",
    "exaone4_full",
    "smollm3",
    "internlm3",
    "stablelm",
    "gpt_oss",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers(name, compare, hf_model_dir, hf_logits, paged_model) -> None:
    loaded = load_model(hf_model_dir(name))
    assert isinstance(loaded.model, DecoderForCausalLM)
    compare(paged_model(loaded.model), lambda tokens: hf_logits(name, tokens))


EXAONE_NAMES = [
    (r"^model\.embed_tokens", "transformer.wte"),
    (r"^model\.norm", "transformer.ln_f"),
    (r"^model\.layers", "transformer.h"),
    (r"self_attn\.o_proj", "attn.attention.out_proj"),
    (r"self_attn", "attn.attention"),
    (r"input_layernorm", "ln_1"),
    (r"post_attention_layernorm", "ln_2"),
    (r"gate_proj", "c_fc_0"),
    (r"up_proj", "c_fc_1"),
    (r"down_proj", "c_proj"),
]


def test_exaone_3_is_llama_by_other_names(hf_model_dir, hf_logits, paged_model, tmp_path) -> None:
    llama = hf_model_dir("llama3")
    fields = json.loads((llama / "config.json").read_text())
    fields |= {"architectures": ["ExaoneForCausalLM"], "model_type": "exaone"}
    for ours, theirs in [
        ("num_hidden_layers", "num_layers"),
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("hidden_act", "activation_function"),
    ]:
        fields[theirs] = fields.pop(ours)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    tensors = load_file(llama / "model.safetensors")
    for ours, theirs in EXAONE_NAMES:
        tensors = {re.sub(ours, theirs, name): tensor for name, tensor in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    tokens = list(range(30))
    got = paged_model(load_model(tmp_path).model).step({"a": tokens})["a"]
    torch.testing.assert_close(got, hf_logits("llama3", tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "fields", "refused"),
    [
        ("stablelm", {"use_parallel_residual": True}, "'use_parallel_residual'"),
        ("smollm3", {"no_rope_layers": [1]}, "'no_rope_layers' must be a list of 5 numbers"),
        ("granite", {"residual_multiplier": 0.0}, "'residual_multiplier' must be above 0"),
    ],
)
def test_what_does_not_run_is_refused(name, fields, refused, hf_model_dir, tmp_path) -> None:
    config = json.loads((hf_model_dir(name) / "config.json").read_text()) | fields
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=refused):
        load_model(tmp_path, load_format="dummy")


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
