"""What published checkpoints' `quantization_config` means; compressed-tensors has its own file."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.models.config_error import ConfigError
from kvasir.models.quantization import Activations, Numbers, Packing, Quantization, Scales
from kvasir.models.quantization_config import parse_quantization

DEEPSEEK = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
AUTOFP8 = {
    "activation_scheme": "static",
    "ignored_layers": ["lm_head", "model.layers.0.mlp.down_proj"],
    "kv_cache_scheme": "static",
    "quant_method": "fp8",
}
MODELOPT = {
    "config_groups": {
        "group_0": {
            "input_activations": {"dynamic": False, "num_bits": 8, "type": "float"},
            "weights": {"dynamic": False, "num_bits": 8, "type": "float"},
        }
    },
    "ignore": ["lm_head", "model.layers.0.self_attn*"],
    "quant_algo": "FP8",
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.33.0"},
    "quant_method": "modelopt",
}
MODELOPT_FILE = {
    "producer": {"name": "modelopt", "version": "0.19.0"},
    "quantization": {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    },
}
AWQ = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
GPTQ = {
    "bits": 4,
    "damp_percent": 0.01,
    "desc_act": True,
    "group_size": 128,
    "model_file_base_name": "model",
    "quant_method": "gptq",
    "static_groups": False,
    "sym": True,
    "true_sequential": True,
}
GPT_OSS = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}
FP8 = Numbers.FP8
INT4 = Numbers.INT4


def read(fields: dict[str, Any]) -> Quantization | None:
    return parse_quantization({"quantization_config": fields})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            DEEPSEEK,
            Quantization(
                "fp8",
                FP8,
                Scales.BLOCK,
                Activations.PER_GROUP,
                block=(128, 128),
                ignored=("lm_head",),
            ),
        ),
        (
            AUTOFP8,
            Quantization(
                "fp8",
                FP8,
                Scales.TENSOR,
                Activations.STATIC,
                kv_cache=FP8,
                ignored=("lm_head", "model.layers.0.mlp.down_proj"),
            ),
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic"},
            Quantization("fp8", FP8, Scales.TENSOR, Activations.PER_TOKEN, ignored=("lm_head",)),
        ),
        (
            MODELOPT,
            Quantization(
                "modelopt",
                FP8,
                Scales.TENSOR,
                Activations.STATIC,
                kv_cache=FP8,
                ignored=("lm_head", r"re:model\.layers\.0\.self_attn.*(\..*)?$"),
            ),
        ),
        (
            MODELOPT_FILE,
            Quantization(
                "modelopt",
                FP8,
                Scales.TENSOR,
                Activations.STATIC,
                kv_cache=FP8,
                ignored=("lm_head",),
            ),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": None},
            Quantization("modelopt", FP8, Scales.TENSOR, Activations.STATIC),
        ),
        (
            AWQ,
            Quantization(
                "awq",
                INT4,
                Scales.GROUP,
                group=128,
                symmetric=False,
                packing=Packing.AWQ,
                ignored=("lm_head",),
            ),
        ),
        (
            {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": False}
            | {"version": "GEMM", "modules_to_not_convert": ["gate"]},
            Quantization(
                "awq",
                INT4,
                Scales.GROUP,
                group=64,
                packing=Packing.AWQ,
                ignored=("gate", "lm_head"),
            ),
        ),
        (
            GPTQ,
            Quantization(
                "gptq",
                INT4,
                Scales.GROUP,
                group=128,
                packing=Packing.GPTQ,
                reordered=True,
                ignored=("lm_head",),
            ),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": False, "desc_act": True}
            | {"checkpoint_format": "gptq", "lm_head": True, "dynamic": {}, "meta": {}},
            Quantization("gptq", INT4, Scales.CHANNEL, symmetric=False, packing=Packing.GPTQ),
        ),
        (
            GPT_OSS,
            Quantization(
                "mxfp4",
                Numbers.MXFP4,
                Scales.GROUP,
                group=32,
                packing=Packing.MXFP4,
                ignored=(
                    r"re:model\.layers\..*\.self_attn(\..*)?$",
                    r"re:model\.layers\..*\.mlp\.router(\..*)?$",
                    "model.embed_tokens",
                    "lm_head",
                    r"re:(?!.*\bexperts\b)",
                ),
            ),
        ),
    ],
)
def test_published_formats(fields: dict[str, Any], expected: Quantization) -> None:
    assert read(fields) == expected


@pytest.mark.parametrize("where", [{"static_groups": True}, {"meta": {"static_groups": True}}])
def test_inputs_of_static_groups_stand_in_order(where: dict[str, Any]) -> None:
    made = read(GPTQ | where)
    assert made is not None
    assert not made.reordered


@pytest.mark.parametrize(
    ("fields", "plain", "quantised"),
    [
        (MODELOPT, "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"),
        (MODELOPT, "model.layers.0.self_attn.qkv_proj", "model.layers.1.self_attn.q_proj"),
        (GPT_OSS, "model.layers.3.self_attn.q_proj", "model.layers.3.mlp.experts.gate_up_proj"),
        (GPT_OSS, "model.layers.3.mlp.router", "model.layers.3.mlp.experts.down_proj"),
        ({"quant_method": "mxfp4"}, "lm_head", "model.layers.3.mlp.experts.down_proj"),
        (
            AWQ | {"modules_to_not_convert": ["visual", "self_attn"]},
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.mlp.gate_proj",
        ),
        (
            GPTQ | {"dynamic": {r"-:.*\.shared_expert\.": {}}},
            "model.layers.0.mlp.shared_expert.up_proj",
            "model.layers.0.mlp.experts.0.up_proj",
        ),
        (
            GPTQ | {"modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.up_proj"]]},
            "model.layers.0.self_attn.k_proj",
            "model.layers.0.mlp.up_proj",
        ),
        (GPTQ, "lm_head", "model.layers.0.mlp.up_proj"),
    ],
)
def test_modules_that_stay_plain(fields: dict[str, Any], plain: str, quantised: str) -> None:
    made = read(fields)
    assert made is not None
    assert not made.applies_to(plain)
    assert made.applies_to(quantised)


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": AWQ},
        {"compression_config": AWQ},
        {"text_config": {"hidden_size": 8}, "quantization_config": AWQ},
        {"text_config": {"quantization_config": None}, "quantization_config": AWQ},
        {"text_config": {"quantization_config": AWQ}},
    ],
)
def test_places_of_the_object(config: dict[str, Any]) -> None:
    made = parse_quantization(config)
    assert made is not None
    assert made.method == "awq"


@pytest.mark.parametrize("config", [{}, {"quantization_config": None}, {"quantization_config": {}}])
def test_plain_checkpoints(config: dict[str, Any]) -> None:
    assert parse_quantization(config) is None


METHODS = '"awq", "compressed-tensors", "fp8", "gptq", "modelopt" or "mxfp4"'
REFUSED: list[tuple[Any, str, str]] = [
    ([1], "", "must be an object, not '[1]'"),
    ({"bits": 4}, ".quant_method", f"null is not supported, only {METHODS}"),
    *(
        ({"quant_method": name}, ".quant_method", f'"{name}" is not supported, only {METHODS}')
        for name in ("bitsandbytes", "torchao", "quark", "gguf", "fbgemm_fp8", "modelopt_fp4")
    ),
    (DEEPSEEK | {"fmt": "e5m2"}, ".fmt", '"e5m2" is not'),
    (DEEPSEEK | {"scale_fmt": "ue8m0"}, ".scale_fmt", '"ue8m0" is not supported, only "float"'),
    (DEEPSEEK | {"expert_dtype": "fp4"}, ".expert_dtype", '"fp4" is not supported, only "fp8"'),
    (DEEPSEEK | {"weight_block_size": [1, 128]}, ".weight_block_size", "only [128, 128]"),
    (DEEPSEEK | {"activation_scheme": "static"}, ".activation_scheme", 'only "dynamic"'),
    (DEEPSEEK | {"modules_to_convert": ["x"]}, ".modules_to_convert", "only null"),
    (AUTOFP8 | {"activation_scheme": "none"}, ".activation_scheme", 'only "dynamic" or "static"'),
    (AUTOFP8 | {"ignored_layers": "lm_head"}, ".ignored_layers", "only a list of modules' names"),
    (AUTOFP8 | {"ignored_layers": ["re:("]}, ".ignored_layers", "patterns that compile"),
    (MODELOPT | {"quant_algo": "NVFP4"}, ".quant_algo", '"NVFP4" is not supported, only "fp8"'),
    (
        {"quantization": {"quant_algo": "W4A8_AWQ"}},
        ".quantization.quant_algo",
        '"W4A8_AWQ" is not supported, only "fp8"',
    ),
    (
        {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}},
        ".quantization.kv_cache_quant_algo",
        '"NVFP4" is not supported, only "fp8"',
    ),
    (AWQ | {"bits": 8}, ".bits", "8 is not supported, only 4"),
    (AWQ | {"bits": True}, ".bits", "true is not supported, only 4"),
    (AWQ | {"version": "gemv"}, ".version", '"gemv" is not supported, only "gemm"'),
    (AWQ | {"backend": "llm-awq"}, ".backend", 'only "autoawq"'),
    (AWQ | {"group_size": 0}, ".group_size", "0 is not supported, only a number of inputs"),
    (AWQ | {"zero_point": "yes"}, ".zero_point", "only true or false"),
    *((GPTQ | {"bits": n}, ".bits", f"{n} is not supported, only 4") for n in (2, 3, 8)),
    (GPTQ | {"checkpoint_format": "gptq_v2"}, ".checkpoint_format", 'only "gptq"'),
    (GPTQ | {"is_marlin_format": True}, ".is_marlin_format", "only null"),
    (GPTQ | {"checkpoint_format": "marlin"}, ".checkpoint_format", '"marlin" is not supported'),
    (GPTQ | {"dynamic": {"+:.*": {"bits": 8}}}, ".dynamic", 'begin with "-:"'),
    (GPTQ | {"modules_in_block_to_quantize": [[1]]}, ".modules_in_block_to_quantize", "names"),
]


@pytest.mark.parametrize(("fields", "field", "rest"), REFUSED)
def test_others_are_refused_with_field_value_and_remedy(fields: Any, field: str, rest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(fields)
    message = str(caught.value)
    assert message.startswith(f"config field 'quantization_config{field}'")
    assert rest in message
