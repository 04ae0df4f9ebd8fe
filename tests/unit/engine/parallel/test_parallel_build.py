"""Which sizes a model and a machine allow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kvasir.models.hf_config import read_shape
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.parallel.parallel_build import (
    build_parallel_runner,
    check_size,
    warn_of_gpus,
)
from kvasir_engine.parallel.rendezvous import check_devices
from kvasir_engine.settings import SettingsError, make_settings

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def possible(tmp_path: Path, *, whole_experts: bool = False, **changes: object) -> list[int]:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_70B, **changes}))
    shape = read_shape(tmp_path)
    allowed = []
    for size in range(1, 130):
        try:
            check_size(size, shape, whole_experts=whole_experts)
        except SettingsError as error:
            values = str(error).rpartition("possible values are ")[2].rstrip(".")
        else:
            allowed.append(size)
    assert values == ", ".join(map(str, allowed))
    return allowed


def test_kv_heads_are_divided_or_copied(tmp_path: Path) -> None:
    assert possible(tmp_path) == [1, 2, 4, 8, 16, 32, 64]
    assert possible(tmp_path, num_key_value_heads=64) == [1, 2, 4, 8, 16, 32, 64]
    assert possible(tmp_path, num_attention_heads=48, num_key_value_heads=6) == [1, 2]


def test_the_width_of_mlps_limits_the_size(tmp_path: Path) -> None:
    assert possible(tmp_path, intermediate_size=28676) == [1, 2, 4]


def test_the_width_of_experts_limits_the_size(tmp_path: Path) -> None:
    experts = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "head_dim": 128,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "intermediate_size": 1,
    }
    assert possible(tmp_path, **experts) == [1, 2, 4, 8]
    with_a_dense_layer = {**experts, "mlp_only_layers": [0], "intermediate_size": 4}
    assert possible(tmp_path, **with_a_dense_layer) == [1, 2, 4]
    # Whole ones limit it by their number.
    assert possible(tmp_path, whole_experts=True, **{**experts, "num_experts": 4}) == [1, 2, 4]
    narrow = {**experts, "moe_intermediate_size": 3}
    assert possible(tmp_path, **narrow) == [1]
    assert possible(tmp_path, whole_experts=True, **narrow) == [1, 2, 4, 8]


def test_a_model_without_experts_has_none_to_divide(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    with pytest.raises(SettingsError, match="this one has none; leave it out"):
        check_size(2, read_shape(tmp_path), whole_experts=True)


def test_a_broken_config_is_refused_before_any_process_starts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        build_parallel_runner(make_settings(str(tmp_path), tensor_parallel_size=2), tmp_path)


def test_more_ranks_than_gpus_are_refused() -> None:
    size = torch.cuda.device_count() + 1
    with pytest.raises(SettingsError, match=f"--tensor-parallel-size {size} needs {size} GPUs"):
        check_devices(size, torch.device("cuda"))
    check_devices(size, torch.device("cpu"))


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(SettingsError, match="--tensor-parallel-size must be at least 1, got 0"):
        make_settings("model", tensor_parallel_size=0)


def test_the_log_says_how_far_ranks_on_gpus_are_tested(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_gpus(torch.device("cpu"))
    assert caplog.messages == []
    warn_of_gpus(torch.device("cuda"))
    (said,) = caplog.messages
    assert "tested on two H100 alone" in said
