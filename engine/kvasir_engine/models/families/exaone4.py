"""EXAONE 4: OLMo 2's layers with a norm on each head's query and key; those that see everything
beside others with windows do not rotate."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir_engine.layers.norm import RMSNorm
from kvasir_engine.layers.rotary import RotaryConfig, unrotated
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.families.llama import LlamaForCausalLM
from kvasir_engine.models.families.olmo2 import PostNormLayer


class Exaone4ForCausalLM(LlamaForCausalLM):
    """EXAONE 4, with windows (32B) and without (1.2B)."""

    layer_type = PostNormLayer
    norm_eps = 1e-5
    qk_norm = RMSNorm

    def rotary(self, config: ModelConfig) -> Sequence[RotaryConfig]:
        """That of the config, and none."""
        return [*super().rotary(config), unrotated(config.shape.head_dim)]

    def rotary_of_layer(self, config: ModelConfig) -> Sequence[int]:
        """Every layer rotates in a model without windows, else those with one."""
        windows = config.shape.layer_windows
        has_windows = any(window is not None for window in windows)
        return [int(has_windows and window is None) for window in windows]
