"""load_model: dtypes, dummy weights, checkpoints of other layouts, and what it refuses."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvasir.models.config_overrides import ConfigOverrides
from kvasir.models.fit.estimate import weight_bytes
from kvasir_engine.loader import load_model as loader
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.loader.load_model import load_model, resolve_dtype


def edit_config(source: Path, target: Path, **fields: Any) -> Path:
    """A copy of a model directory with some config fields changed."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **fields}))
    return target


def edit_weights(directory: Path, **changes: torch.Tensor | None) -> None:
    """Add, replace or (None) remove tensors."""
    tensors = {**load_file(directory / "model.safetensors"), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, directory / "model.safetensors")


def parameters(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.data for name, p in model.named_parameters()}


def frequencies(model: Any) -> list[torch.Tensor]:
    return [buffer for name, buffer in model.named_buffers() if "freq" in name]


def test_dtype_auto_is_float32_on_a_cpu_and_the_configs_on_a_gpu() -> None:
    assert resolve_dtype("auto", "bfloat16", torch.device("cpu")) == torch.float32
    assert resolve_dtype("auto", "bfloat16", torch.device("cuda")) == torch.bfloat16
    assert resolve_dtype("float16", "bfloat16", torch.device("cuda")) == torch.float16
    with pytest.raises(ModelLoadError, match="dtype 'int8' is not supported"):
        resolve_dtype("int8", "bfloat16", torch.device("cpu"))


def test_a_model_is_all_of_its_dtype_and_size(hf_model_dir) -> None:
    loaded = load_model(hf_model_dir("llama3"), dtype="bfloat16")
    weights = parameters(loaded.model)
    assert {w.dtype for w in weights.values()} == {torch.bfloat16}
    assert sum(w.nbytes for w in weights.values()) == 2 * loaded.shape.num_parameters
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("name", ["gemma3", "starcoder2"])
def test_dummy_weights_follow_the_seed_alone(name, hf_model_dir, tmp_path) -> None:
    shutil.copy(hf_model_dir(name) / "config.json", tmp_path)
    one, same, other = (
        parameters(load_model(tmp_path, load_format="dummy", seed=seed).model) for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not any(torch.equal(one[key], other[key]) for key in one)
    assert all(0 < w.abs().max() < 0.05 for w in one.values())


def test_text_part_of_a_multimodal_gemma3(hf_model_dir, hf_logits, paged_model, tmp_path) -> None:
    text = json.loads((hf_model_dir("gemma3") / "config.json").read_text())
    tensors = load_file(hf_model_dir("gemma3") / "model.safetensors")
    tokens = list(range(30))
    for number, prefix in enumerate(("language_model.model.", "model.language_model.")):
        directory = tmp_path / str(number)
        directory.mkdir()
        outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
        (directory / "config.json").write_text(json.dumps({**outer, "text_config": text}))
        renamed = {prefix + name.removeprefix("model."): t for name, t in tensors.items()}
        renamed["vision_tower.patch.weight"] = torch.ones(1)
        save_file(renamed, directory / "model.safetensors")
        paged = paged_model(load_model(directory).model)
        got = paged.step({"a": tokens})["a"]
        torch.testing.assert_close(got, hf_logits("gemma3", tokens), atol=1e-4, rtol=1e-4)


def test_a_tied_head_in_the_file_is_left_out(hf_model_dir, tmp_path, caplog) -> None:
    directory = edit_config(hf_model_dir("llama31"), tmp_path / "model")
    edit_weights(directory, **{"lm_head.weight": torch.zeros(160, 48)})
    with caplog.at_level(logging.WARNING):
        assert parameters(load_model(directory).model)["model.embed_tokens.weight"].any()
    assert caplog.text == ""


def test_weights_that_nothing_uses_are_logged(hf_model_dir, tmp_path, caplog) -> None:
    directory = edit_config(hf_model_dir("llama3"), tmp_path / "model")
    edit_weights(directory, **{"model.adapter.weight": torch.zeros(1)})
    with caplog.at_level(logging.WARNING):
        load_model(directory)
    assert "1 weights are not used: ['model.adapter.weight']" in caplog.text


@pytest.mark.parametrize("model_impl", ["native", "transformers"])
def test_a_missing_weight_is_refused(model_impl, hf_model_dir, tmp_path) -> None:
    directory = edit_config(hf_model_dir("llama3"), tmp_path / "model")
    edit_weights(directory, **{"model.norm.weight": None})
    with pytest.raises(ModelLoadError, match=r"lacks 1 weights .* model\.norm\.weight"):
        load_model(directory, model_impl=model_impl)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["NopeForCausalLM"]}, "'NopeForCausalLM' cannot be served"),
    ({"quantization_config": {"quant_method": "awq", "group_size": 48}}, "groups of 48 inputs"),
    ({"hidden_size": None}, "hidden_size"),
    ({"hidden_act": "relu9"}, "'relu9' is not supported"),
    ({"rope_parameters": {"rope_type": "spiral"}}, "'spiral' is not supported"),
    ({"rope_parameters": {"rope_type": "llama3"}}, "needs a field 'factor'"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_configs_that_are_refused(fields, message, hf_model_dir, tmp_path) -> None:
    directory = edit_config(hf_model_dir("llama3"), tmp_path / "model", **fields)
    with pytest.raises(ModelLoadError, match=message):
        load_model(directory)


def test_plain_weights_are_quantised_where_the_user_asks_for_it(hf_model_dir) -> None:
    asked = ConfigOverrides(quantization="fp8")
    loaded = load_model(hf_model_dir("llama3"), overrides=asked)
    assert isinstance(loaded.model, torch.nn.Module)
    stored = {p.dtype for name, p in loaded.model.named_parameters() if "self_attn" in name}
    assert torch.float8_e4m3fn in stored
    assert loaded.shape.quantization_method == "fp8"


@pytest.mark.parametrize("quantization", ["auto", "fp8"])
@pytest.mark.parametrize("name", ["llama3", "qwen3_moe", "mixtral", "gemma2", "phi3", "exaone4"])
def test_weights_take_what_the_fit_counts(name, quantization, hf_model_dir) -> None:
    loaded = load_model(
        hf_model_dir(name),
        load_format="none",
        overrides=ConfigOverrides(quantization=quantization),
    )
    assert isinstance(loaded.model, torch.nn.Module)
    size = sum(p.nbytes for p in loaded.model.parameters())
    assert size == weight_bytes(loaded.shape, dtype="float32")


def test_directories_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="is not a directory"):
        load_model(tmp_path / "absent")
    with pytest.raises(ModelLoadError, match=r"config\.json does not exist"):
        load_model(tmp_path)


def test_out_of_memory_says_how_much_was_asked(hf_model_dir, monkeypatch) -> None:
    def exhausted(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("kvasir_engine.loader.load_model.build_native", exhausted)
    with pytest.raises(ModelLoadError) as error:
        load_model(hf_model_dir("llama3"))
    said = str(error.value)
    assert said.startswith("--tensor-parallel-size 1, --dtype float32: ")
    assert "about 0.0 GiB on cpu, which has less free" in said
    assert "--tensor-parallel-size to 2, set --dtype bfloat16, or free" in said


def test_out_of_memory_on_a_gpu_says_how_large_it_is(hf_model_dir, monkeypatch) -> None:
    shape = load_model(hf_model_dir("llama3"), load_format="none").shape
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, 80 << 30))
    said = str(loader._too_large(shape, torch.bfloat16, torch.device("cuda")))
    assert "on cuda, of 80.0 GiB in all; raise --tensor-parallel-size to 2, or free" in said
    assert "bfloat16," not in said


@pytest.mark.parametrize("model_impl", ["native", "transformers"])
def test_overrides_are_as_if_the_config_said_so(model_impl, hf_model_dir, tmp_path) -> None:
    """Of the rope too, in both implementations."""
    source = hf_model_dir("llama3")
    overrides = ConfigOverrides(
        {"num_hidden_layers": 1}, {"rope_type": "linear", "factor": 2.0}, 77.0
    )
    config = overrides.apply(json.loads((source / "config.json").read_text()))
    stated = edit_config(source, tmp_path / "m", **config)
    made, same, plain = (
        load_model(directory, model_impl=model_impl, load_format="dummy", overrides=each)
        for directory, each in ((source, overrides), (stated, None), (source, None))
    )
    assert made.shape == same.shape
    assert (made.shape.num_layers, plain.shape.num_layers > 1) == (1, True)
    assert made.shape.max_position_embeddings == 2 * plain.shape.max_position_embeddings
    ropes = [frequencies(each.model) for each in (made, same, plain)]
    assert ropes[0]
    for one, equal, other in zip(*ropes, strict=True):
        assert torch.equal(one, equal)
        assert not torch.equal(one, other)
