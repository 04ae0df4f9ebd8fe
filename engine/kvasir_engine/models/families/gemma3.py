"""Gemma 3, text: Gemma 2's layers with QK norm, five windowed layers to each full one."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir_engine.layers.norm import GemmaRMSNorm
from kvasir_engine.layers.rotary import RotaryConfig
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.families.gemma2 import Gemma2ForCausalLM


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """Windowed layers rotate with a short base wavelength and no scaling."""

    unused_prefixes = ("vision_tower.", "multi_modal_projector.")
    qk_norm = GemmaRMSNorm
    attention_cap = None
    logit_cap_default = None

    def __init__(self, config: ModelConfig) -> None:
        if config.get("use_bidirectional_attention"):
            raise ValueError("config field 'use_bidirectional_attention': only causal models run")
        super().__init__(config)

    @staticmethod
    def slot_name(name: str) -> str:
        """The text part of the multimodal checkpoints is under one more prefix."""
        return name.removeprefix("language_model.").replace("model.language_model.", "model.", 1)

    def rotary(self, config: ModelConfig) -> Sequence[RotaryConfig]:
        """Those of the full layers and of the windowed ones."""
        return [config.rotary(1_000_000.0, "full_attention"), local_rotary(config)]

    def rotary_of_layer(self, config: ModelConfig) -> Sequence[int]:
        """The last for layers with a window."""
        return [0 if window is None else 1 for window in config.shape.layer_windows]


def local_rotary(config: ModelConfig) -> RotaryConfig:
    """Rotary embedding of the windowed layers."""
    if "sliding_attention" in config.get("rope_parameters", {}):
        return config.rotary(layer_type="sliding_attention")
    return RotaryConfig(config.shape.head_dim, config.get("rope_local_base_freq", 10_000.0))
