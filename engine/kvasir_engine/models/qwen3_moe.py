"""Qwen3-MoE: Qwen3's attention, experts in all or some of the layers."""

from __future__ import annotations

from torch import nn

from kvasir_engine.layers.moe import ExpertNames, MoE, MoEConfig
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.decoder import dense_mlp
from kvasir_engine.models.qwen3 import Qwen3ForCausalLM


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    """Layers named by `mlp_only_layers`, or between sparse steps, have a dense MLP."""

    def mlp(self, config: ModelConfig, layer: int) -> nn.Module:
        """Experts or a dense MLP."""
        shape, act = config.shape, config.get("hidden_act", "silu")
        sparse = (layer + 1) % config.get("decoder_sparse_step", 1) == 0
        if layer in config.get("mlp_only_layers", ()) or not sparse:
            return dense_mlp(config, act)
        return MoE(
            MoEConfig(
                hidden_size=shape.hidden_size,
                intermediate_size=shape.moe_intermediate_size,
                num_experts=shape.num_experts,
                experts_per_token=shape.experts_per_token,
                act=act,
                normalise=config.get("norm_topk_prob", False),
                names=ExpertNames(),
            )
        )
