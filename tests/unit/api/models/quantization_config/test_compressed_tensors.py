"""What a `quantization_config` of compressed-tensors means."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.models.config_error import ConfigError
from kvasir.models.quantization import Activations, Numbers, Packing, Quantization, Scales
from kvasir.models.quantization_config import parse_quantization

WEIGHTS = {
    "actorder": None,
    "block_structure": None,
    "dynamic": False,
    "group_size": None,
    "num_bits": 8,
    "observer": "minmax",
    "observer_kwargs": {},
    "strategy": "channel",
    "symmetric": True,
    "type": "float",
}
INPUTS = WEIGHTS | {"dynamic": True, "observer": None, "strategy": "token"}
BLOCKS = WEIGHTS | {"strategy": "block", "block_structure": [128, 128]}
INT4 = WEIGHTS | {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 128}
GROUPS = INPUTS | {"strategy": "group", "group_size": 128}
FP8_KV = {"dynamic": False, "num_bits": 8, "strategy": "tensor", "symmetric": True, "type": "float"}


def fields(
    weights: dict[str, Any] | None,
    inputs: dict[str, Any] | None = None,
    kind: str | None = "float-quantized",
    **others: Any,
) -> dict[str, Any]:
    group = {
        "input_activations": inputs,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": kind,
        "global_compression_ratio": 1.5,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    } | others


def made(numbers: Numbers, scales: Scales, *others: Any, **further: Any) -> Quantization:
    if numbers is Numbers.INT4:
        further["packing"] = Packing.COMPRESSED_TENSORS
    return Quantization(
        "compressed-tensors", numbers, scales, *others, ignored=("lm_head",), **further
    )


FP8 = Numbers.FP8
STATIC = WEIGHTS | {"strategy": "tensor"}
PACKED = "pack-quantized"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (fields(WEIGHTS, INPUTS), made(FP8, Scales.CHANNEL, Activations.PER_TOKEN)),
        (
            fields(STATIC, STATIC, "naive-quantized", kv_cache_scheme=FP8_KV),
            made(FP8, Scales.TENSOR, Activations.STATIC, kv_cache=FP8),
        ),
        (
            fields(STATIC, STATIC | {"dynamic": True}),
            made(FP8, Scales.TENSOR, Activations.PER_TENSOR),
        ),
        (fields(WEIGHTS), made(FP8, Scales.CHANNEL)),
        (
            fields(BLOCKS, GROUPS),
            made(FP8, Scales.BLOCK, Activations.PER_GROUP, block=(128, 128)),
        ),
        (
            fields(BLOCKS | {"block_structure": "128x128"}, sparsity_config={"format": "dense"}),
            made(FP8, Scales.BLOCK, block=(128, 128)),
        ),
        (fields(INT4, kind=PACKED), made(Numbers.INT4, Scales.GROUP, group=128)),
        (
            fields(INT4 | {"symmetric": False, "actorder": "weight"}, kind=PACKED),
            made(Numbers.INT4, Scales.GROUP, group=128, symmetric=False),
        ),
        (
            fields(INT4 | {"actorder": "group"}, kind=PACKED),
            made(Numbers.INT4, Scales.GROUP, group=128, reordered=True),
        ),
        (
            fields(INT4 | {"strategy": "channel", "group_size": None}, kind=PACKED),
            made(Numbers.INT4, Scales.CHANNEL),
        ),
    ],
)
def test_published_schemes(config: dict[str, Any], expected: Quantization) -> None:
    assert parse_quantization({"quantization_config": config}) == expected


def test_groups_that_are_alike_and_carry_their_own_format() -> None:
    config = fields(WEIGHTS, INPUTS, None)
    group = config["config_groups"]["group_0"] | {"format": "float-quantized"}
    config["config_groups"] = {"group_0": group, "group_1": dict(group)}
    expected = made(FP8, Scales.CHANNEL, Activations.PER_TOKEN)
    assert parse_quantization({"quantization_config": config}) == expected


def two_groups() -> dict[str, Any]:
    config = fields(WEIGHTS, INPUTS)
    config["config_groups"]["group_1"] = fields(STATIC)["config_groups"]["group_0"]
    return config


def targeting(*targets: str) -> dict[str, Any]:
    config = fields(WEIGHTS)
    config["config_groups"]["group_0"]["targets"] = list(targets)
    return config


INT8 = WEIGHTS | {"type": "int"}
NVFP4 = WEIGHTS | {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}


@pytest.mark.parametrize(
    ("config", "field", "rest"),
    [
        (fields(INT8, INPUTS, "int-quantized"), "group_0.weights.num_bits", "8 is not supported"),
        (fields(NVFP4, kind="nvfp4-pack-quantized"), "group_0.weights.num_bits", "4 is not"),
        (fields(INT4, kind="marlin-24"), "format", 'only "pack-quantized"'),
        (fields(WEIGHTS, kind="dense"), "format", 'only "float-quantized" or "naive-quantized"'),
        (fields(WEIGHTS, kind=None), "format", "null is not supported"),
        (fields(INT4, INPUTS, PACKED), "group_0.input_activations", "only null with weights of 4"),
        (fields(WEIGHTS | {"symmetric": False}), "group_0.weights.symmetric", "only true"),
        (fields(WEIGHTS | {"dynamic": True}), "group_0.weights.dynamic", "only false"),
        (fields(WEIGHTS | {"strategy": "group"}), "group_0.weights.strategy", 'only "tensor", '),
        (fields(BLOCKS | {"block_structure": [64, 64]}), "group_0.weights.block_structure", "128"),
        (fields(BLOCKS, INPUTS), "group_0.input_activations.strategy", 'only "group"'),
        (fields(WEIGHTS, INT8), "group_0.input_activations.type", 'only "float"'),
        (
            fields(WEIGHTS, INPUTS | {"dynamic": False}),
            "group_0.input_activations.strategy",
            'only "tensor"',
        ),
        (fields(INT4 | {"strategy": "tensor"}, kind=PACKED), "group_0.weights.strategy", "group"),
        (fields(None), "group_0.weights", "only an object"),
        (targeting("re:.*mlp.*"), "group_0.targets", 'only ["Linear"]'),
        (two_groups(), "config_groups", "only groups that are quantised alike"),
        (fields(WEIGHTS, config_groups={}), "config_groups", "only an object of groups"),
        (fields(WEIGHTS, config_groups={"FP8": ["Linear"]}), "config_groups", "of groups"),
        (
            fields(WEIGHTS, sparsity_config={"format": "sparse-24-bitmask"}),
            "sparsity_config.format",
            'only "dense"',
        ),
        (fields(WEIGHTS, transform_config={"R1": {}}), "transform_config", "only null"),
        (
            fields(WEIGHTS, kv_cache_scheme=FP8_KV | {"type": "int"}),
            "kv_cache_scheme.type",
            'only "float"',
        ),
    ],
)
def test_others_are_refused(config: dict[str, Any], field: str, rest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_quantization({"quantization_config": config})
    message = str(caught.value)
    assert f".{field}'" in message
    assert rest in message
