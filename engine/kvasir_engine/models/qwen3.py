"""Qwen3: Llama's layers with a norm on each head's query and key."""

from __future__ import annotations

from dataclasses import replace

from kvasir_engine.layers.attention import AttentionConfig
from kvasir_engine.layers.norm import RMSNorm
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.llama import LlamaForCausalLM


class Qwen3ForCausalLM(LlamaForCausalLM):
    """The dense Qwen3 models."""

    def attention(self, config: ModelConfig, layer: int) -> AttentionConfig:
        """Llama's, with QK norm."""
        return replace(super().attention(config, layer), qk_norm=RMSNorm)
