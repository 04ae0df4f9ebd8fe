"""Defaults and layer structure that each Hugging Face model family leaves out of its config.json.

The values are those of the family's configuration and modelling classes in transformers; published
configs (Gemma 3's above all) rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults and layer layout of one `model_type`."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the family's configuration class assumes when the file has none."""
    sliding: Literal["none", "all", "tail", "pattern"] = "none"
    """Layers that `sliding_window` applies to when the config has no `layer_types`: "tail" those
    from `max_window_layers` on, "pattern" all but every `sliding_window_pattern`-th."""
    qkv_bias: bool = False
    attention_bias_fields: tuple[str, ...] = ()
    qkv_bias_fields: tuple[str, ...] = ()
    """Fields that give queries, keys and values a bias and the output projection none."""
    mlp_bias_fields: tuple[str, ...] = ()
    gated_mlp: bool = True
    qk_norm: Literal["none", "head", "full"] = "none"
    norms_per_layer: int = 2
    norm_bias: bool = False
    expert_bias: bool = False
    """Routers and experts have biases."""
    attention_sinks: bool = False


_ATTENTION_BIAS = ("attention_bias",)
_QWEN = {
    "max_position_embeddings": 32768,
    "vocab_size": 151936,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA = {"tie_word_embeddings": True, "head_dim": 256, "eos_token_id": 1}
_GEMMA_2 = {
    **_GEMMA,
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
}
_GEMMA_3 = {
    **_GEMMA_2,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window_pattern": 6,
}

FAMILIES: dict[str, Family] = {
    "llama": Family(
        defaults={"max_position_embeddings": 2048, "vocab_size": 32000, "eos_token_id": 2},
        attention_bias_fields=_ATTENTION_BIAS,
        mlp_bias_fields=("mlp_bias",),
    ),
    "mistral": Family(
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
            "eos_token_id": 2,
        },
        sliding="all",
    ),
    "mixtral": Family(
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "eos_token_id": 2,
        },
        sliding="all",
    ),
    "qwen2": Family(defaults=_QWEN, sliding="tail", qkv_bias=True),
    "qwen3": Family(
        defaults={**_QWEN, "head_dim": 128},
        sliding="tail",
        attention_bias_fields=_ATTENTION_BIAS,
        qk_norm="head",
    ),
    "qwen3_moe": Family(
        defaults={
            **_QWEN,
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        sliding="all",
        attention_bias_fields=_ATTENTION_BIAS,
        qk_norm="head",
    ),
    "gemma": Family(
        defaults={**_GEMMA, "num_key_value_heads": 16, "max_position_embeddings": 8192},
        attention_bias_fields=_ATTENTION_BIAS,
    ),
    "gemma2": Family(
        defaults=_GEMMA_2,
        sliding="pattern",
        attention_bias_fields=_ATTENTION_BIAS,
        norms_per_layer=4,
    ),
    "gemma3_text": Family(
        defaults=_GEMMA_3,
        sliding="pattern",
        attention_bias_fields=_ATTENTION_BIAS,
        qk_norm="head",
        norms_per_layer=4,
    ),
    "phi3": Family(
        defaults={"max_position_embeddings": 4096, "vocab_size": 32064, "eos_token_id": 32000},
        sliding="all",
    ),
    "olmo2": Family(
        defaults={"max_position_embeddings": 2048, "vocab_size": 50304, "eos_token_id": 50279},
        attention_bias_fields=_ATTENTION_BIAS,
        qk_norm="full",
    ),
    "granite": Family(
        defaults={"max_position_embeddings": 2048, "vocab_size": 32000, "eos_token_id": 2},
        attention_bias_fields=_ATTENTION_BIAS,
        mlp_bias_fields=("mlp_bias",),
    ),
    "internlm3": Family(
        defaults={
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "vocab_size": 128512,
            "head_dim": 128,
            "eos_token_id": 2,
        },
        attention_bias_fields=(*_ATTENTION_BIAS, "qkv_bias"),
        mlp_bias_fields=("mlp_bias", "bias"),
    ),
    "exaone": Family(
        defaults={"max_position_embeddings": 2048, "vocab_size": 102400, "eos_token_id": 2}
    ),
    "exaone4": Family(
        defaults={
            "max_position_embeddings": 2048,
            "vocab_size": 102400,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
            "eos_token_id": 2,
        },
        sliding="pattern",
        qk_norm="head",
    ),
    "smollm3": Family(
        defaults={
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "eos_token_id": 128001,
        },
        attention_bias_fields=_ATTENTION_BIAS,
        mlp_bias_fields=("mlp_bias",),
    ),
    "stablelm": Family(
        defaults={"max_position_embeddings": 4096, "vocab_size": 50304, "eos_token_id": 0},
        qkv_bias_fields=("use_qkv_bias",),
        norm_bias=True,
    ),
    "gpt_oss": Family(
        defaults={
            "num_hidden_layers": 36,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "vocab_size": 201088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "head_dim": 64,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "attention_bias": True,
            # Of what is not in MXFP4; published configs may name no type.
            "dtype": "bfloat16",
        },
        sliding="pattern",
        attention_bias_fields=_ATTENTION_BIAS,
        expert_bias=True,
        attention_sinks=True,
    ),
    "cohere": Family(
        defaults={
            "max_position_embeddings": 8192,
            "vocab_size": 256000,
            "tie_word_embeddings": True,
            "eos_token_id": 255001,
        },
        attention_bias_fields=_ATTENTION_BIAS,
        norms_per_layer=1,
    ),
    "starcoder2": Family(
        defaults={
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "use_bias": True,
            "tie_word_embeddings": True,
            "eos_token_id": 50256,
        },
        sliding="all",
        attention_bias_fields=("use_bias",),
        mlp_bias_fields=("use_bias",),
        gated_mlp=False,
        norm_bias=True,
    ),
}
