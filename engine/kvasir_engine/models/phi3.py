"""Phi-3 and Phi-4-mini: Llama's layers with fused projections, LongRoPE in the long variants."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from kvasir_engine.layers.attention import AttentionConfig
from kvasir_engine.layers.rotary import RotaryConfig
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.decoder import dense_mlp
from kvasir_engine.models.llama import LlamaForCausalLM


class Phi3ForCausalLM(LlamaForCausalLM):
    """Checkpoints hold queries, keys and values as one tensor, and gate and up as one."""

    norm_eps = 1e-5

    def attention(self, config: ModelConfig, layer: int) -> AttentionConfig:
        """Llama's, read from the fused tensor."""
        return replace(super().attention(config, layer), fused_qkv=True)

    def mlp(self, config: ModelConfig, layer: int) -> nn.Module:
        """Llama's, read from the fused tensor."""
        return dense_mlp(config, config.get("hidden_act", "silu"), fused=True)

    def rotary(self, config: ModelConfig) -> RotaryConfig:
        """LongRoPE was called "su" or "yarn" in this family's first configs."""
        rotary = super().rotary(config)
        if rotary.kind in ("su", "yarn"):
            return replace(rotary, scaling={**rotary.scaling, "rope_type": "longrope"})
        return rotary
