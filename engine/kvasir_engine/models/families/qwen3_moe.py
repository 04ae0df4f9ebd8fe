"""Qwen3-MoE: Qwen3's attention, experts in all or some of the layers."""

from __future__ import annotations

from kvasir_engine.layers.mlp import GatedMLP
from kvasir_engine.layers.moe import ExpertNames, MoE
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.families.qwen3 import Qwen3ForCausalLM


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    """Layers named by `mlp_only_layers`, or between sparse steps, have a dense MLP."""

    def mlp(self, config: ModelConfig, layer: int) -> GatedMLP | MoE:
        """Experts or a dense MLP."""
        sparse = (layer + 1) % config.get("decoder_sparse_step", 1) == 0
        if layer in config.get("mlp_only_layers", ()) or not sparse:
            return super().mlp(config, layer)
        normalise = config.get("norm_topk_prob", False)
        return self.experts(config, ExpertNames(), normalise=normalise)
