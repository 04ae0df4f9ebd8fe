"""StableLM 3B and StableLM 2 1.6B: Llama's layers with LayerNorm and partial rotation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvasir_engine.layers.norm import LayerNorm
from kvasir_engine.layers.rotary import RotaryConfig
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.decoder import DecoderLayer
from kvasir_engine.models.families.llama import LlamaForCausalLM


class StableLmLayer(DecoderLayer):
    """Pre-norm with LayerNorm."""

    norm_type = LayerNorm


class StableLmForCausalLM(LlamaForCausalLM):
    """The models whose blocks follow each other; those of StableLM 2 12B run side by side."""

    layer_type = StableLmLayer
    norm_eps = 1e-5

    def __init__(self, config: ModelConfig) -> None:
        for name in ("use_parallel_residual", "qk_layernorm"):
            if config.get(name):
                raise ValueError(f"config field {name!r}: only models without it run")
        super().__init__(config)

    def eps(self, config: ModelConfig) -> float:
        """Number that norms add to the variance."""
        return float(config.get("layer_norm_eps", self.norm_eps))

    def rotary(self, config: ModelConfig) -> Sequence[RotaryConfig]:
        """A quarter of the channels turn where the config says nothing."""
        [rotary] = super().rotary(config)
        if rotary.scaling.get("partial_rotary_factor") is None:
            rotary = replace(rotary, rotary_dim=config.shape.head_dim // 4)
        return [rotary]
