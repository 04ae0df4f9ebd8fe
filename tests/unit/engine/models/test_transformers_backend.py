"""Models that run through transformers' modelling code with our attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.loader.load_model import load_model
from kvasir_engine.models.transformers_backend import TransformersForCausalLM


@pytest.mark.slow
@pytest.mark.parametrize("name", ["olmo2", "starcoder2", "llama31", "gemma2", "qwen3_moe"])
def test_logits_equal_transformers(name, compare, hf_model_dir, hf_logits, paged_model) -> None:
    loaded = load_model(hf_model_dir(name), model_impl="transformers")
    assert isinstance(loaded.model, TransformersForCausalLM)
    compare(paged_model(loaded.model), lambda tokens: hf_logits(name, tokens))


def test_auto_takes_it_for_a_family_without_native_code(hf_model_dir) -> None:
    assert isinstance(load_model(hf_model_dir("starcoder2")).model, TransformersForCausalLM)
    with pytest.raises(ModelLoadError, match="no native code"):
        load_model(hf_model_dir("starcoder2"), model_impl="native")


def test_tied_weights_count_once(hf_model_dir) -> None:
    models: list[Any] = [
        load_model(hf_model_dir("llama31")).model,
        load_model(hf_model_dir("llama31"), model_impl="transformers").model,
    ]
    ours, theirs = (sum(weight.nbytes for weight in model.parameters()) for model in models)
    assert theirs == ours > 0


def write_config(directory: Path, **fields: Any) -> Path:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 64,
        "max_position_embeddings": 64,
    }
    (directory / "config.json").write_text(json.dumps({**sizes, **fields}))
    return directory


REFUSED = [
    ({"model_type": "nope", "architectures": ["NopeForCausalLM"]}, "does not know it"),
    (
        {
            "model_type": "nope",
            "architectures": ["NopeForCausalLM"],
            "auto_map": {"AutoModelForCausalLM": "modeling_nope.NopeForCausalLM"},
        },
        "--trust-remote-code",
    ),
    ({"model_type": "bert", "architectures": ["BertModel"]}, "not a causal language model"),
    ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "not causal"),
    ({"model_type": "bloom", "architectures": ["BloomForCausalLM"]}, "attention interface"),
    (
        {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "state_size": 4},
        "keep state other than",
    ),
    (
        {
            "model_type": "gemma3",
            "architectures": ["PaliGemmaForConditionalGeneration"],
            "vision_config": {},
        },
        "multimodal",
    ),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSED)
def test_refuses_with_the_reason(fields: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=reason) as caught:
        load_model(write_config(tmp_path, **fields), load_format="dummy")
    assert fields["architectures"][0] in str(caught.value)


def test_refuses_a_rope_that_depends_on_the_batch(hf_model_dir) -> None:
    with pytest.raises(ModelLoadError, match="longest sequence of a batch"):
        load_model(hf_model_dir("phi3_long"), model_impl="transformers")


REMOTE_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
class NopeConfig(LlamaConfig):
    model_type = "nope"
class NopeForCausalLM(LlamaForCausalLM):
    config_class = NopeConfig
"""


def test_runs_remote_code_that_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.dynamic_module_utils

    modules = tmp_path / "modules"
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(modules))
    model = tmp_path / "model"
    model.mkdir()
    (model / "modeling_nope.py").write_text(REMOTE_CODE)
    auto_map = {
        "AutoConfig": "modeling_nope.NopeConfig",
        "AutoModelForCausalLM": "modeling_nope.NopeForCausalLM",
    }
    fields = {"model_type": "nope", "architectures": ["NopeForCausalLM"], "auto_map": auto_map}
    write_config(model, **fields)
    loaded = load_model(model, load_format="dummy", trust_remote_code=True)
    assert len(loaded.model.attention_specs) == 1


def test_dense_layers_can_be_captured_as_graphs(hf_model_dir, caplog) -> None:
    with caplog.at_level("INFO"):
        loaded = load_model(hf_model_dir("starcoder2"), model_impl="transformers")
    assert loaded.model.graph_safe
    assert "Starcoder2ForCausalLM runs through transformers' modelling code" in caplog.text
    assert "without CUDA graphs" not in caplog.text


def test_layers_that_look_at_values_run_without_graphs_and_say_so(
    hf_model_dir, caplog, monkeypatch
) -> None:
    from transformers.models.starcoder2.modeling_starcoder2 import Starcoder2MLP

    forward = Starcoder2MLP.forward

    def looks(self, hidden):
        return forward(self, hidden) if hidden.sum() < 1e9 else hidden

    monkeypatch.setattr(Starcoder2MLP, "forward", looks)
    with caplog.at_level("INFO"):
        loaded = load_model(hf_model_dir("starcoder2"), model_impl="transformers")
    assert not loaded.model.graph_safe
    assert "without CUDA graphs, since" in caplog.text
    # What each layer asks of attention is as it was found.
    layers = range(loaded.shape.num_layers)
    assert [spec.layer for spec in loaded.model.attention_specs] == [*layers]
