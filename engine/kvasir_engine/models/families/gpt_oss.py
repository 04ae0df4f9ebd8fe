"""gpt-oss: Llama's layers with attention sinks, every second one windowed, and experts with biases
and a clamped gate."""

from __future__ import annotations

from dataclasses import replace

from kvasir_engine.layers.attention import AttentionConfig
from kvasir_engine.layers.clamped_moe import ClampedGate, ClampedMoE
from kvasir_engine.layers.mlp import GatedMLP
from kvasir_engine.layers.moe import ExpertNames, MoE, MoEConfig
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.families.llama import LlamaForCausalLM


class GptOssForCausalLM(LlamaForCausalLM):
    """gpt-oss-20b and -120b, with plain experts or in MXFP4."""

    norm_eps = 1e-5
    rope_theta = 150_000.0

    def attention(self, config: ModelConfig, layer: int) -> AttentionConfig:
        """Attention of one layer, with sinks."""
        return replace(super().attention(config, layer), sinks=True)

    def mlp(self, config: ModelConfig, layer: int) -> GatedMLP | MoE:
        """Experts in every layer."""
        shape = config.shape
        sizes = MoEConfig(
            hidden_size=shape.hidden_size,
            intermediate_size=shape.moe_intermediate_size,
            num_experts=shape.num_experts,
            experts_per_token=shape.experts_per_token,
            act=config.get(*self.act),
            normalise=True,
            names=ExpertNames(),
        )
        alpha, limit = config.get("swiglu_alpha", 1.702), config.get("swiglu_limit", 7.0)
        return ClampedMoE(sizes, ClampedGate(float(alpha), float(limit)))
