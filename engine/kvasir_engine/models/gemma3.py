"""Gemma 3, text: Gemma 2's layers with QK norm, five windowed layers to each full one."""

from __future__ import annotations

from kvasir_engine.layers.norm import GemmaRMSNorm
from kvasir_engine.layers.rotary import RotaryConfig
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.decoder import Decoder, DecoderForCausalLM
from kvasir_engine.models.gemma2 import GemmaLayer, gemma_attention, gemma_mlp


class Gemma3ForCausalLM(DecoderForCausalLM):
    """Windowed layers rotate with a short base wavelength and no scaling."""

    unused_prefixes = ("vision_tower.", "multi_modal_projector.")

    def __init__(self, config: ModelConfig) -> None:
        shape = config.shape
        if config.get("use_bidirectional_attention"):
            raise ValueError("config field 'use_bidirectional_attention': only causal models run")
        layers = [
            GemmaLayer(gemma_attention(config, i, qk_norm=True), gemma_mlp(config))
            for i in range(shape.num_layers)
        ]
        norm = GemmaRMSNorm(shape.hidden_size, config.get("rms_norm_eps", 1e-6))
        model = Decoder(
            config,
            layers,
            norm,
            [config.rotary(1_000_000.0, "full_attention"), local_rotary(config)],
            rotary_of_layer=[0 if window is None else 1 for window in shape.layer_windows],
            embedding_scale=shape.hidden_size**0.5,
        )
        super().__init__(config, model, logit_cap=config.get("final_logit_softcapping"))

    @staticmethod
    def slot_name(name: str) -> str:
        """The text part of the multimodal checkpoints is under one more prefix."""
        return name.removeprefix("language_model.").replace("model.language_model.", "model.", 1)


def local_rotary(config: ModelConfig) -> RotaryConfig:
    """Rotary embedding of the windowed layers."""
    if "sliding_attention" in config.get("rope_parameters", {}):
        return config.rotary(layer_type="sliding_attention")
    return RotaryConfig(config.shape.head_dim, config.get("rope_local_base_freq", 10_000.0))
