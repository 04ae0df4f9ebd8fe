"""The format of compressed-tensors, as llm-compressor writes it: groups of layers with arguments
for their weights and inputs."""

from __future__ import annotations

from typing import NamedTuple

from kvasir.models.quantization import Activations, Numbers, Packing, Quantization, Scales
from kvasir.models.quantization_config.config_fields import ConfigFields
from kvasir.models.quantization_config.weight_formats import FP8_BLOCK, kv_cache_numbers

_FP8_FORMATS = ("float-quantized", "naive-quantized")
_INT4_FORMAT = "pack-quantized"
_REORDERED = ("group", "dynamic", True)
"""Values of `actorder` with which a group's inputs do not stand side by side."""


class _Weights(NamedTuple):
    scales: Scales
    group: int = 0
    block: tuple[int, int] | None = None
    symmetric: bool = True
    reordered: bool = False


def compressed_tensors(config: ConfigFields) -> Quantization:
    """Read weights of FP8 (a scale a tensor, channel or block) or packed INT4, all in one way."""
    config.refuse("transform_config")
    sparsity = config.part("sparsity_config")
    if sparsity is not None:
        sparsity.require("format", "dense", default="dense")
    kv_cache, ignored = kv_cache_numbers(config), config.modules("ignore")
    made = [_group(config, each, kv_cache, ignored) for each in config.parts("config_groups")]
    if any(each != made[0] for each in made):
        raise config.error("config_groups", "groups that are quantised alike")
    return made[0]


def _group(
    config: ConfigFields, group: ConfigFields, kv_cache: Numbers | None, ignored: tuple[str, ...]
) -> Quantization:
    group.require("targets", ["Linear"])
    group.refuse("output_activations")
    weights = group.part("weights")
    if weights is None:
        raise group.error("weights", "an object")
    numbers = _numbers(weights)
    # A group's own format comes before that of all.
    stored = config if group.get("format") is None else group
    stored.choose("format", *(_FP8_FORMATS if numbers is Numbers.FP8 else (_INT4_FORMAT,)))
    made = _fp8(weights) if numbers is Numbers.FP8 else _int4(weights)
    return Quantization(
        "compressed-tensors",
        numbers,
        made.scales,
        _inputs(group, numbers, made.scales),
        group=made.group,
        block=made.block,
        symmetric=made.symmetric,
        packing=Packing.NONE if numbers is Numbers.FP8 else Packing.COMPRESSED_TENSORS,
        reordered=made.reordered,
        kv_cache=kv_cache,
        ignored=ignored,
    )


def _numbers(weights: ConfigFields) -> Numbers:
    kind = weights.choose("type", "float", "int", default="int")
    weights.require("num_bits", 8 if kind == "float" else 4, default=8)
    weights.require("dynamic", False, default=False)
    return Numbers.FP8 if kind == "float" else Numbers.INT4


def _fp8(weights: ConfigFields) -> _Weights:
    weights.require("symmetric", True, default=True)
    weights.refuse("group_size", "actorder")
    scales = Scales(weights.choose("strategy", "tensor", "channel", "block", default="tensor"))
    if scales is not Scales.BLOCK:
        return _Weights(scales)
    # Older files have the block as text.
    weights.require("block_structure", list(FP8_BLOCK), "x".join(map(str, FP8_BLOCK)))
    return _Weights(scales, block=FP8_BLOCK)


def _int4(weights: ConfigFields) -> _Weights:
    group = weights.group_size("group_size", default=-1)
    strategy = "group" if group else "channel"
    weights.require("strategy", strategy, default=strategy)
    weights.require("actorder", None, False, "weight", "static", *_REORDERED)
    return _Weights(
        Scales(strategy),
        group=group,
        symmetric=weights.flag("symmetric", default=True),
        reordered=group > 0 and weights.get("actorder") in _REORDERED,
    )


def _inputs(group: ConfigFields, numbers: Numbers, scales: Scales) -> Activations | None:
    inputs = group.part("input_activations")
    if inputs is None:
        return None
    if numbers is not Numbers.FP8:
        raise group.error("input_activations", "null with weights of 4 bits")
    inputs.require("type", "float")
    inputs.require("num_bits", 8, default=8)
    inputs.require("symmetric", True, default=True)
    if scales is Scales.BLOCK:
        inputs.require("strategy", "group")
        inputs.require("group_size", FP8_BLOCK[1])
        inputs.require("dynamic", True)
        return Activations.PER_GROUP
    if not inputs.flag("dynamic", default=False):
        inputs.require("strategy", "tensor", default="tensor")
        return Activations.STATIC
    token = inputs.choose("strategy", "token", "tensor", default="tensor") == "token"
    return Activations.PER_TOKEN if token else Activations.PER_TENSOR
