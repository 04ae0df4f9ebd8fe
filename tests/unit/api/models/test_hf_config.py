"""The shape read from a config.json, against transformers' own models of the same config."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.llama_config import LLAMA_8B

from kvasir.models.hf_config import ConfigError, load_config, parse_shape, read_shape
from kvasir.models.quantization_config import parse_quantization

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 130,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"head_dim": 24}),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("mistral", {"sliding_window": 8}),
    ("mixtral", {"num_local_experts": 4}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}),
    ("qwen3", {"head_dim": 24, "attention_bias": True}),
    ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [1], "head_dim": 24}),
    ("qwen3_moe", {**EXPERTS, "decoder_sparse_step": 2, "use_sliding_window": True}),
    ("gemma", {"head_dim": 24}),
    ("gemma2", {"head_dim": 24, "sliding_window": 9}),
    ("gemma3_text", {"head_dim": 24, "sliding_window": 9}),
    ("phi3", {"pad_token_id": 0, "eos_token_id": 1, "sliding_window": 5}),
    ("olmo2", {"eos_token_id": 1}),
    ("granite", {"attention_bias": True, "mlp_bias": True}),
    ("exaone4", {"head_dim": 24, "sliding_window": 9}),
    ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 7}),
    ("smollm3", {"attention_bias": True, "pad_token_id": 0, "eos_token_id": 1}),
    ("internlm3", {"attention_bias": True, "mlp_bias": True}),
    ("stablelm", {"use_qkv_bias": True}),
    ("gpt_oss", {"num_local_experts": 8, "head_dim": 24, "sliding_window": 9}),
    ("gpt_oss", {"attention_bias": False}),
    ("cohere", {"eos_token_id": 1, "bos_token_id": 1}),
    ("starcoder2", {"eos_token_id": [1, 2], "bos_token_id": 1}),
    ("starcoder2", {"use_bias": False, "eos_token_id": 1, "bos_token_id": 1}),
]


def llama(**fields: Any) -> dict[str, Any]:
    return {"model_type": "llama", **SMALL, **fields}


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "fields"), CONFIGS)
def test_parameters_are_those_of_the_model_transformers_builds(
    model_type: str, fields: dict[str, Any]
) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **SMALL, **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = parse_shape(json.loads(config.to_json_string()))
    assert shape.num_parameters == sum(p.numel() for p in model.parameters())
    assert shape.parameters_exact
    # A config that leaves out what its class assumes has the same shape.
    assert parse_shape({"model_type": model_type, **SMALL, **fields}) == shape


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (llama(sliding_window=8), (None,) * 7),
        ({**SMALL, "model_type": "mistral"}, (4096,) * 7),
        ({**SMALL, "model_type": "mistral", "sliding_window": None}, (None,) * 7),
        ({**SMALL, "model_type": "qwen2", "sliding_window": 8}, (None,) * 7),
        (
            {**SMALL, "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 5},
            (None,) * 5 + (4096,) * 2,
        ),
        ({**SMALL, "model_type": "gemma2"}, (4096, None, 4096, None, 4096, None, 4096)),
        ({**SMALL, "model_type": "gemma3_text", "sliding_window": 9}, (9,) * 5 + (None, 9)),
        ({**SMALL, "model_type": "gpt_oss"}, (128, None, 128, None, 128, None, 128)),
        (
            {**SMALL, "model_type": "gemma3_text", "sliding_window_pattern": 2},
            (4096, None, 4096, None, 4096, None, 4096),
        ),
        (
            llama(layer_types=["full_attention", "sliding_attention"] + ["full_attention"] * 5)
            | {"sliding_window": 8},
            (None, 8) + (None,) * 5,
        ),
    ],
)
def test_windows(config: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert parse_shape(config).layer_windows == windows


def test_the_text_part_of_a_multimodal_config_and_its_defaults() -> None:
    shape = parse_shape(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "eos_token_id": [1, 106],
            "torch_dtype": "bfloat16",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152},
        }
    )
    assert (shape.architecture, shape.model_type) == (
        "Gemma3ForConditionalGeneration",
        "gemma3_text",
    )
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == (8, 4, 256)
    assert (shape.vocab_size, shape.dtype, shape.eos_token_ids) == (262208, "bfloat16", (1, 106))
    assert shape.tie_word_embeddings
    assert shape.layer_windows.count(None) == 5
    # The language model of google/gemma-3-4b-it, as its card counts it: 3.88 billion.
    assert shape.num_parameters == pytest.approx(3.88e9, rel=0.002)


def test_published_sizes() -> None:
    shape = parse_shape({**LLAMA_8B, "eos_token_id": [128001, 128008, 128009]})
    assert shape.num_parameters == 8_030_261_248  # as the hub states for Llama 3.1 8B
    assert shape.kv_bytes_per_token() == 131072
    assert shape.kv_bytes_per_token("fp8", tensor_parallel=2) == 32768
    assert shape.kv_bytes_per_token(tensor_parallel=16) == 131072 // 8  # a copy of one KV head
    assert shape.eos_token_ids == (128001, 128008, 128009)


def test_active_parameters_of_a_mixture() -> None:
    shape = parse_shape({**SMALL, "model_type": "qwen3_moe", **EXPERTS, "mlp_only_layers": [1]})
    idle = 6 * (8 - 2) * 3 * 64 * 40
    assert shape.num_sparse_layers == 6
    assert shape.num_active_parameters == shape.num_parameters - idle


def test_biases_of_experts_are_part_of_them() -> None:
    shape = parse_shape({**SMALL, "model_type": "gpt_oss"})
    assert shape.dtype == "bfloat16"
    idle = 7 * (128 - 4) * (3 * 64 * 96 + 2 * 96 + 64)
    assert shape.num_active_parameters == shape.num_parameters - idle
    # Biases of the outputs are copied, as are routers.
    routers = 7 * 128 * (64 + 1)
    assert shape.parameters(2).mlp == (shape.parameters().mlp + routers + 7 * 128 * 64) // 2


def test_ranks_share_the_matrices_and_copy_the_norms() -> None:
    shape = parse_shape(llama(num_key_value_heads=2))
    one, four = shape.parameters(), shape.parameters(4)
    assert four.norms == one.norms
    assert four.mlp * 4 == one.mlp
    assert four.embedding == -(-130 // 4) * 64
    head = 64 * 16
    assert four.attention == 7 * (head + 2 * head + head)  # one query head and a copied KV head


@pytest.mark.parametrize("size", [3, 0, 8])
def test_heads_that_cannot_be_divided(size: int) -> None:
    with pytest.raises(ValueError, match=f"tensor parallel size {size} does not divide the 4"):
        parse_shape(llama()).parameters(size)


def test_quantised_checkpoints() -> None:
    fields = {"quant_method": "awq", "bits": 4}
    shape = parse_shape(llama(quantization_config=fields))
    assert shape.quantization == parse_quantization({"quantization_config": fields})
    assert shape.quantization_method == "awq"
    assert parse_shape(llama(quantization_config=None)).quantization_method is None


def test_older_names_and_unknown_families() -> None:
    shape = parse_shape(
        {
            "model_type": "gpt_neox_like",
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 99,
            "vocab_size": 10,
        }
    )
    assert (shape.hidden_size, shape.num_layers, shape.num_kv_heads) == (64, 2, 4)
    assert (shape.intermediate_size, shape.max_position_embeddings) == (256, 99)
    assert not shape.parameters_exact


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 0}, "'hidden_size' must be 1 to"),
        ({"vocab_size": None}, "'vocab_size' is missing"),
        ({"num_hidden_layers": True}, "'num_hidden_layers' must be 1 to 4096, not True"),
        ({"num_key_value_heads": 3}, "'num_key_value_heads' 3 does not divide"),
        ({"layer_types": ["full_attention"]}, "'layer_types' must be a list of 7 names"),
        ({"layer_types": ["linear_attention"] * 7}, "'linear_attention' layers are not supported"),
        ({"kv_lora_rank": 512}, "multi-head latent attention is not supported"),
        ({"eos_token_id": "2"}, "'eos_token_id' must be token ids, not '2'"),
        ({"quantization_config": {"bits": 4}}, "'quantization_config.quant_method': null is not"),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_shape(llama(**fields))


CONFIG_OBJECTS = [
    {},
    {"x": 1},
    {"bits": []},
    {"quant_method": "compressed-tensors", "config_groups": {"g": 1}},
    {"quant_method": "fp8", "weight_block_size": 7},
]
NUMBERS = [None, True, False, -1, 0, 1, 3, 2**33, 0.5, float("nan")]
VALUES = st.sampled_from([*NUMBERS, "", "x", [], [1], ["x"], [None], *CONFIG_OBJECTS])
FIELDS = [
    "head_dim",
    "sliding_window",
    "sliding_window_pattern",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "mlp_only_layers",
    "text_config",
    "eos_token_id",
    "quantization_config",
    "architectures",
    "dtype",
    "model_type",
    "is_encoder_decoder",
]


@pytest.mark.slow
@given(
    model_type=st.sampled_from(sorted({kind for kind, _ in CONFIGS} | {"other"})),
    fields=st.dictionaries(st.sampled_from([*SMALL, *EXPERTS, *FIELDS]), VALUES, max_size=4),
)
def test_any_object_gives_a_shape_or_a_config_error(
    model_type: str, fields: dict[str, Any]
) -> None:
    try:
        shape = parse_shape({"model_type": model_type, **SMALL, **fields})
    except ConfigError:
        return
    assert len(shape.layer_windows) == shape.num_layers
    assert shape.num_parameters > 0


def test_files(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama()))
    assert read_shape(tmp_path) == read_shape(tmp_path / "config.json") == parse_shape(llama())
    with pytest.raises(ConfigError, match="does not exist; name a Hugging Face model directory"):
        load_config(tmp_path / "absent")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match=r"bad.json is not valid JSON"):
        load_config(tmp_path / "bad.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigError, match="must hold a JSON object, not a list"):
        load_config(tmp_path / "list.json")


def test_modelopts_own_file_counts_where_the_config_says_nothing(tmp_path: Any) -> None:
    config, beside = tmp_path / "config.json", tmp_path / "hf_quant_config.json"
    beside.write_text(
        json.dumps(
            {
                "producer": {"name": "modelopt", "version": "0.19.0"},
                "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
            }
        )
    )
    config.write_text(json.dumps(llama()))
    assert read_shape(tmp_path).quantization_method == "modelopt"
    assert read_shape(config).quantization_method == "modelopt"
    config.write_text(json.dumps(llama(quantization_config={"quant_method": "awq"})))
    assert read_shape(tmp_path).quantization_method == "awq"
    beside.write_text("{")
    config.write_text(json.dumps(llama()))
    with pytest.raises(ConfigError, match=r"hf_quant_config.json is not valid JSON"):
        load_config(tmp_path)
