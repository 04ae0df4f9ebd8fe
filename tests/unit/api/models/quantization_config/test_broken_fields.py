"""Published `quantization_config`s with one value exchanged: read, or refused with a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvasir.models.config_error import ConfigError
from kvasir.models.quantization import Quantization
from kvasir.models.quantization_config import parse_quantization

INPUTS = {"dynamic": True, "num_bits": 8, "strategy": "token", "symmetric": True, "type": "float"}
WEIGHTS = INPUTS | {
    "dynamic": False,
    "strategy": "block",
    "block_structure": [128, 128],
    "group_size": None,
    "actorder": None,
}
PUBLISHED: list[dict[str, Any]] = [
    {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head"],
        "kv_cache_scheme": None,
    },
    {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": INPUTS}
        },
        "kv_cache_scheme": INPUTS | {"dynamic": False, "strategy": "tensor"},
        "sparsity_config": {"format": "dense"},
        "ignore": ["re:.*gate$"],
    },
    {
        "quant_method": "modelopt",
        "quantization": {
            "quant_algo": "FP8",
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": ["lm_head*"],
        },
    },
    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "desc_act": False,
        "dynamic": {"-:.*gate": {}},
        "meta": {"static_groups": False},
        "modules_in_block_to_quantize": [["self_attn.q_proj"]],
    },
    {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
]
BROKEN: list[Any] = [
    *(None, True, -1, 0, 3, 2**70, 0.5, float("nan"), "", "x", "re:(", "\ud800"),
    *([], [1], ["re:("], [None], {}, {"x": 1}, {"-:(": {}}, {1: 2}),
]


def _paths(fields: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in fields.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from _paths(value, (*before, name))


def _exchanged(fields: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    name, *rest = path
    return fields | {name: _exchanged(fields[name], tuple(rest), value) if rest else value}


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda fields: fields["quant_method"])
def test_no_value_of_a_field_breaks_the_reading(published: dict[str, Any]) -> None:
    refused: list[str] = []
    for path in _paths(published):
        for value in BROKEN:
            config = {"quantization_config": _exchanged(published, path, value)}
            try:
                made = parse_quantization(config)
            except ConfigError as error:
                refused.append(str(error))
            else:
                assert isinstance(made, Quantization)
                made.applies_to("model.layers.0.mlp.gate_proj")
    assert refused
    assert all(each.startswith("config field 'quantization_config") for each in refused)
