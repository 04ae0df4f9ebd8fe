"""SmolLM3: Llama's layers, of which every fourth does not rotate (NoPE)."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir_engine.layers.rotary import RotaryConfig, unrotated
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.families.llama import LlamaForCausalLM


class SmolLM3ForCausalLM(LlamaForCausalLM):
    """`no_rope_layers` is 0 for the layers that do not rotate, and 1 for those that do."""

    rope_theta = 2_000_000.0

    def rotary(self, config: ModelConfig) -> Sequence[RotaryConfig]:
        """None, and that of the config."""
        return [unrotated(config.shape.head_dim), *super().rotary(config)]

    def rotary_of_layer(self, config: ModelConfig) -> Sequence[int]:
        """By `no_rope_layers`, or the interval where the config does not name the layers."""
        layers = config.shape.num_layers
        interval = config.get("no_rope_layer_interval", 4)
        named = config.get("no_rope_layers", [(i + 1) % interval for i in range(layers)])
        if not isinstance(named, list) or len(named) != layers:
            raise ValueError(f"config field 'no_rope_layers' must be a list of {layers} numbers")
        return [int(bool(rotates)) for rotates in named]
