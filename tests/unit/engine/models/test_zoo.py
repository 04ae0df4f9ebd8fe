"""The configs of benchmarks/models/zoo: what our loader wants is what transformers' model has."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvasir.models.fit.estimate import weight_bytes
from kvasir.models.hf_config import load_config
from kvasir_engine.layers.weights import model_slots
from kvasir_engine.loader.transformers_loader import refuse_unless_supported
from kvasir_engine.models.config import model_config
from kvasir_engine.models.registry import NATIVE, build_native
from kvasir_engine.quantization.quantize_layers import quantize_layers

pytestmark = pytest.mark.slow

ZOO = Path(__file__).parents[4] / "benchmarks" / "models" / "zoo"
CONFIGS = sorted(path.parent.name for path in ZOO.glob("*/config.json"))
THROUGH_TRANSFORMERS = {"command-r-8layers"}
NOT_IN_TRANSFORMERS = {"exaone3.5-2.4b", "exaone3.5-7.8b"}
"""Their code comes with the models. They are Llamas by other names, which test_native.py maps."""
IN_MXFP4 = "gpt-oss-20b"
"""Its checkpoint has the experts' matrices of a kind in one tensor, plain ones as transformers'
module does."""
Shapes = dict[str, tuple[int, ...]]


def fields_of(name: str) -> dict[str, Any]:
    return load_config(ZOO / name)


def theirs(fields: dict[str, Any], directory: Path) -> Any:
    """transformers' model of the config, without memory."""
    (directory / "config.json").write_text(json.dumps(fields))
    config = transformers.AutoConfig.from_pretrained(directory)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def as_llama(fields: dict[str, Any]) -> dict[str, Any]:
    """EXAONE 3.5's config in Llama's words."""
    renamed = {"num_layers": "num_hidden_layers", "activation_function": "hidden_act"}
    made = {renamed.get(name, name): value for name, value in fields.items()}
    return {**made, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def test_the_zoo_is_large_and_its_exceptions_are_in_it() -> None:
    assert len(CONFIGS) >= 40
    assert set(CONFIGS) > THROUGH_TRANSFORMERS | NOT_IN_TRANSFORMERS


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - THROUGH_TRANSFORMERS))
def test_the_loader_wants_what_transformers_has(name: str, tmp_path: Path) -> None:
    fields = fields_of(name)
    config = model_config(fields)
    with torch.device("meta"):
        model = build_native(config.shape.architecture, config)
    reference = theirs(as_llama(fields) if name in NOT_IN_TRANSFORMERS else fields, tmp_path)
    ours: Shapes = {key: slot.shape for key, slot in model_slots(model).items()}
    want: Shapes = {
        model.slot_name(key): tuple(weight.shape) for key, weight in reference.named_parameters()
    }
    assert config.shape.parameters_exact
    assert config.shape.num_parameters == sum(p.numel() for p in reference.parameters())
    if config.shape.num_experts and name != IN_MXFP4:
        # Checkpoints have a matrix an expert; transformers' module joins them under other names.
        dense = {key for key in want if "expert" not in key and ".mlp.gate." not in key}
        assert {key: want[key] for key in dense} == {key: ours[key] for key in dense}
        size = config.shape.hidden_size * config.shape.moe_intermediate_size
        experts = [math.prod(shape) for key, shape in ours.items() if key not in want]
        count = 3 * config.shape.num_experts * config.shape.num_sparse_layers
        assert experts.count(size) == count
    else:
        assert ours == want


def test_mxfp4_experts_take_what_the_plan_says() -> None:
    config = model_config(fields_of(IN_MXFP4))
    quantization = config.shape.quantization
    assert quantization is not None
    with torch.device("meta"):
        model = build_native(config.shape.architecture, config)
        plain = {name: slot.shape for name, slot in model_slots(model).items()}
        quantize_layers(model, quantization)
    want: Shapes = {}
    for name, shape in plain.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            want[name] = shape
            continue
        experts, inputs, outputs = shape
        want[f"{name}_blocks"] = experts, outputs, inputs // 32, 16
        want[f"{name}_scales"] = experts, outputs, inputs // 32
    assert {name: slot.shape for name, slot in model_slots(model).items()} == want
    # The vocabulary and the attention in bfloat16.
    held = sum(p.numel() * (1 if p.dtype == torch.uint8 else 2) for p in model.parameters())
    assert held == weight_bytes(config.shape)
    assert held == pytest.approx(13.76e9, rel=1e-3)


@pytest.mark.parametrize("name", sorted(THROUGH_TRANSFORMERS))
def test_what_has_no_native_code_runs_through_transformers(name: str, tmp_path: Path) -> None:
    fields = fields_of(name)
    shape = model_config(fields).shape
    assert shape.architecture not in NATIVE
    refuse_unless_supported(fields, shape.architecture, trust_remote_code=False)
    reference = theirs(fields, tmp_path)
    assert shape.num_parameters == sum(p.numel() for p in reference.parameters())
