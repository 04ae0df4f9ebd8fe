"""Mixtral: Llama's attention, experts in every layer."""

from __future__ import annotations

from kvasir_engine.layers.mlp import GatedMLP
from kvasir_engine.layers.moe import ExpertNames, MoE
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.families.llama import LlamaForCausalLM


class MixtralForCausalLM(LlamaForCausalLM):
    """Mixtral 8x7B and 8x22B."""

    norm_eps = 1e-5
    rope_theta = 1_000_000.0

    def mlp(self, config: ModelConfig, layer: int) -> GatedMLP | MoE:
        """Experts, under the names of Mistral's own checkpoints."""
        names = ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2")
        return self.experts(config, names, normalise=True)
