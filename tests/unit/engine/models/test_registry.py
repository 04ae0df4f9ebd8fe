"""Names in config.json and the code behind them."""

from __future__ import annotations

import pytest
import torch
import transformers

from kvasir.models.hf_config import load_config
from kvasir_engine.models.config import model_config
from kvasir_engine.models.registry import NATIVE, build_native

# Their own repositories' code names these.
NOT_IN_TRANSFORMERS = {"ExaoneForCausalLM", "InternLM3ForCausalLM"}


@pytest.mark.parametrize("architecture", sorted(NATIVE.keys() - NOT_IN_TRANSFORMERS))
def test_transformers_knows_every_architecture_by_that_name(architecture: str) -> None:
    assert hasattr(transformers, architecture)


@pytest.mark.parametrize(
    "name", ["llama2", "mistral", "qwen2", "qwen3_moe", "gemma3", "phi3", "olmo2", "stablelm"]
)
def test_an_architecture_builds_its_own_class(name: str, hf_model_dir) -> None:
    config = model_config(load_config(hf_model_dir(name)), None)
    architecture = config.shape.architecture
    with torch.device("meta"):
        model = build_native(architecture, config)
    assert type(model).__name__ == NATIVE[architecture][1]
    assert type(model).__module__ == f"kvasir_engine.models.families.{NATIVE[architecture][0]}"
    assert sum(p.numel() for p in model.parameters()) == config.shape.num_parameters
