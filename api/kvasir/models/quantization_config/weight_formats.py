"""Formats that say in a few fields how all linear layers are quantised."""

from __future__ import annotations

import re
from typing import Any

from kvasir.models.quantization import Activations, Numbers, Packing, Quantization, Scales
from kvasir.models.quantization_config.config_fields import ConfigFields

FP8_BLOCK = (128, 128)
"""Outputs and inputs that share a scale, in every published checkpoint of blocks."""
_HEAD = ("lm_head",)
"""Plain in these formats, whether their lists name it or not."""
_MXFP4_GROUP = 32
_NOT_EXPERTS = r"re:(?!.*\bexperts\b)"


def fp8(config: ConfigFields) -> Quantization:
    """Read FP8 as DeepSeek, transformers and AutoFP8 write it.

    `online` is Kvasir's own: it stands in no checkpoint, but where --quantization puts it.
    """
    config.require("fmt", "e4m3", "float8_e4m3fn", default="e4m3")
    config.require("scale_fmt", "float", default="float")
    config.require("expert_dtype", "fp8", default="fp8")
    config.refuse("modules_to_convert")
    ignored = _with_head(config.modules("modules_to_not_convert", "ignored_layers"))
    if config.flag("online", default=False):
        per_token = Activations.PER_TOKEN
        return Quantization(
            "fp8", Numbers.FP8, Scales.CHANNEL, per_token, online=True, ignored=ignored
        )
    static = config.choose("activation_scheme", "dynamic", "static", default="dynamic") == "static"
    config.require("kv_cache_scheme", None, "static")
    kv_cache = Numbers.FP8 if config.get("kv_cache_scheme") else None
    if config.get("weight_block_size") is None:
        inputs = Activations.STATIC if static else Activations.PER_TOKEN
        return Quantization(
            "fp8", Numbers.FP8, Scales.TENSOR, inputs, kv_cache=kv_cache, ignored=ignored
        )
    config.require("weight_block_size", list(FP8_BLOCK))
    config.require("activation_scheme", "dynamic", default="dynamic")
    return Quantization(
        "fp8",
        Numbers.FP8,
        Scales.BLOCK,
        Activations.PER_GROUP,
        block=FP8_BLOCK,
        kv_cache=kv_cache,
        ignored=ignored,
    )


def modelopt(config: ConfigFields) -> Quantization:
    """Read FP8 as NVIDIA's ModelOpt writes it, into config.json or hf_quant_config.json."""
    config = config.part("quantization") or config
    config.choose("quant_algo", "fp8")
    kv_cache = None
    if config.get("kv_cache_quant_algo") is not None:
        kv_cache = Numbers(config.choose("kv_cache_quant_algo", "fp8"))
    elif config.get("kv_cache_scheme") is not None:
        kv_cache = kv_cache_numbers(config)
    return Quantization(
        "modelopt",
        Numbers.FP8,
        Scales.TENSOR,
        Activations.STATIC,
        kv_cache=kv_cache,
        ignored=config.modules("exclude_modules", "ignore"),
    )


def kv_cache_numbers(config: ConfigFields) -> Numbers | None:
    """Return the type of which `kv_cache_scheme` says that the checkpoint has KV scales."""
    scheme = config.part("kv_cache_scheme")
    if scheme is None:
        return None
    scheme.require("num_bits", 8, default=8)
    scheme.require("type", "float")
    scheme.require("strategy", "tensor", default="tensor")
    scheme.require("dynamic", False, default=False)
    scheme.require("symmetric", True, default=True)
    return Numbers.FP8


def awq(config: ConfigFields) -> Quantization:
    """Read AWQ's GEMM format, as AutoAWQ writes it."""
    config.require("w_bit" if config.get("bits") is None else "bits", 4, default=4)
    config.choose("format" if config.get("version") is None else "version", "gemm", default="gemm")
    if config.get("backend") == "llm-awq":
        raise config.error("backend", '"autoawq"')
    group = config.group_size("group_size", "q_group_size", default=128)
    return Quantization(
        "awq",
        Numbers.INT4,
        Scales.GROUP if group else Scales.CHANNEL,
        group=group,
        symmetric=not config.flag("zero_point", default=True),
        packing=Packing.AWQ,
        ignored=_with_head(config.modules("modules_to_not_convert")),
    )


def gptq(config: ConfigFields) -> Quantization:
    """Read GPTQ's first format, as AutoGPTQ and GPTQModel write it."""
    config.require("bits", 4)
    config.choose(
        "format" if config.get("checkpoint_format") is None else "checkpoint_format",
        "gptq",
        default="gptq",
    )
    config.refuse("is_marlin_format")
    config.require("pack_dtype", "int32", default="int32")
    group = config.group_size("group_size", default=128)
    # Groups that are formed before the inputs are ordered lie in the checkpoint as they stand.
    reordered = config.flag("desc_act", default=False) and not _has_static_groups(config)
    ignored = _skipped(config) + _not_in_blocks(config)
    return Quantization(
        "gptq",
        Numbers.INT4,
        Scales.GROUP if group else Scales.CHANNEL,
        group=group,
        symmetric=config.flag("sym", default=True),
        packing=Packing.GPTQ,
        reordered=reordered and group > 0,
        ignored=ignored if config.flag("lm_head", default=False) else _with_head(ignored),
    )


def mxfp4(config: ConfigFields) -> Quantization:
    """Read gpt-oss' MXFP4: experts alone are quantised."""
    return Quantization(
        "mxfp4",
        Numbers.MXFP4,
        Scales.GROUP,
        group=_MXFP4_GROUP,
        packing=Packing.MXFP4,
        ignored=(*config.modules("modules_to_not_convert"), _NOT_EXPERTS),
    )


def _with_head(ignored: tuple[str, ...]) -> tuple[str, ...]:
    return ignored + tuple(name for name in _HEAD if name not in ignored)


def _has_static_groups(config: ConfigFields) -> bool:
    meta = config.part("meta")
    return config.flag("static_groups", default=False) or (
        meta is not None and meta.flag("static_groups", default=False)
    )


def _skipped(config: ConfigFields) -> tuple[str, ...]:
    """Return the modules that GPTQModel's `dynamic` leaves plain: patterns after "-:"."""
    rules = config.get("dynamic") or {}
    if not isinstance(rules, dict) or not all(str(name).startswith("-:") for name in rules):
        raise config.error("dynamic", 'patterns that begin with "-:"')
    return config.check_patterns("dynamic", tuple(f"re:{str(name)[2:]}" for name in rules))


def _not_in_blocks(config: ConfigFields) -> tuple[str, ...]:
    """Return a pattern of all modules but those that `modules_in_block_to_quantize` names."""
    name = "modules_in_block_to_quantize"
    names = _flat(config.get(name) or [])
    if not all(isinstance(each, str) for each in names):
        raise config.error(name, "a list of modules' names")
    if not names:
        return ()
    return (rf"re:(?!(?:.*\.)?(?:{'|'.join(map(re.escape, names))})$)",)


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    return [each for item in value for each in (item if isinstance(item, list) else [item])]
