"""Llama 2, 3 and 3.1, and Mistral: the same layers, Mistral's with a window."""

from __future__ import annotations

from kvasir_engine.layers.mlp import GatedMLP
from kvasir_engine.layers.norm import RMSNorm
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.decoder import (
    Decoder,
    DecoderForCausalLM,
    DecoderLayer,
    attention_config,
)


class LlamaForCausalLM(DecoderForCausalLM):
    """Also Qwen2 and Mistral: biases and windows are the config's."""

    def __init__(self, config: ModelConfig) -> None:
        shape = config.shape
        layers = [
            DecoderLayer(attention_config(config, i), dense_mlp(config))
            for i in range(shape.num_layers)
        ]
        norm = RMSNorm(shape.hidden_size, config.get("rms_norm_eps", 1e-6))
        super().__init__(config, Decoder(config, layers, norm, [config.rotary()]))


def dense_mlp(config: ModelConfig) -> GatedMLP:
    """The gated MLP that config.json describes."""
    shape = config.shape
    act = config.get("hidden_act", "silu")
    return GatedMLP(shape.hidden_size, shape.intermediate_size, act, bias=shape.mlp_bias)
