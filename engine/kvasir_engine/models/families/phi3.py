"""Phi-3 and Phi-4-mini: Llama's layers with fused projections, LongRoPE in the long variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvasir_engine.layers.rotary import RotaryConfig
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.families.llama import LlamaForCausalLM


class Phi3ForCausalLM(LlamaForCausalLM):
    """Checkpoints hold queries, keys and values as one tensor, and gate and up as one."""

    norm_eps = 1e-5
    fused = True

    def rotary(self, config: ModelConfig) -> Sequence[RotaryConfig]:
        """LongRoPE was called "su" or "yarn" in this family's first configs."""
        [rotary] = super().rotary(config)
        if rotary.kind in ("su", "yarn"):
            rotary = replace(rotary, scaling={**rotary.scaling, "rope_type": "longrope"})
        return [rotary]
