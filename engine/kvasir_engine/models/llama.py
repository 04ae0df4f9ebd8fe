"""Llama 2, 3 and 3.1; also Mistral (windows) and Qwen2 (biases), whose layers are the same."""

from __future__ import annotations

from torch import nn

from kvasir_engine.layers.attention import AttentionConfig
from kvasir_engine.layers.norm import RMSNorm
from kvasir_engine.layers.rotary import RotaryConfig
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.decoder import (
    Decoder,
    DecoderForCausalLM,
    DecoderLayer,
    attention_config,
    dense_mlp,
)


class LlamaForCausalLM(DecoderForCausalLM):
    """Pre-norm layers. Families that differ in a part of the layer override its method."""

    norm_eps = 1e-6
    """rms_norm_eps where the config has none."""
    rope_theta = 10_000.0
    """Base wavelength where the config has none."""

    def __init__(self, config: ModelConfig) -> None:
        shape = config.shape
        layers = [
            DecoderLayer(self.attention(config, i), self.mlp(config, i))
            for i in range(shape.num_layers)
        ]
        norm = RMSNorm(shape.hidden_size, config.get("rms_norm_eps", self.norm_eps))
        super().__init__(config, Decoder(config, layers, norm, [self.rotary(config)]))

    def attention(self, config: ModelConfig, layer: int) -> AttentionConfig:
        """Attention of one layer."""
        return attention_config(config, layer, self.norm_eps)

    def mlp(self, config: ModelConfig, layer: int) -> nn.Module:
        """MLP of one layer."""
        return dense_mlp(config, config.get("hidden_act", "silu"))

    def rotary(self, config: ModelConfig) -> RotaryConfig:
        """Rotary embedding of all layers."""
        return config.rotary(self.rope_theta)
