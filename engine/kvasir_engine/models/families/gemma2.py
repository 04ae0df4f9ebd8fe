"""Gemma 2: norms before and after each block, soft caps, windows in every other layer."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvasir_engine.layers.attention import AttentionConfig
from kvasir_engine.layers.block_output import Output
from kvasir_engine.layers.norm import GemmaRMSNorm, Norm, RMSNorm
from kvasir_engine.layers.rotary import RotaryTable
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.decoder import DecoderLayer
from kvasir_engine.models.families.llama import LlamaForCausalLM


class GemmaLayer(DecoderLayer):
    """Attention and MLP, each between a norm of its input and one of its output."""

    norm_type = GemmaRMSNorm
    norm_names = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
    post_attention_layernorm: RMSNorm
    pre_feedforward_layernorm: Norm
    post_feedforward_layernorm: RMSNorm

    def forward(
        self, x: Output, residual: torch.Tensor | None, rotary: RotaryTable
    ) -> tuple[Output, torch.Tensor | None]:
        """The layer's own output and the residual it is still to be added to."""
        normed, residual = self.input_layernorm.add_rows(x, residual, self.self_attn)
        attended = self.post_attention_layernorm.of_output(self.self_attn(normed, rotary))
        normed, residual = self.pre_feedforward_layernorm.add_rows(attended, residual, self.mlp)
        return self.post_feedforward_layernorm.of_output(self.mlp(normed)), residual


class Gemma2ForCausalLM(LlamaForCausalLM):
    """Embeddings are scaled by the square root of the hidden size, and tied to the head."""

    layer_type = GemmaLayer
    act = ("hidden_activation", "gelu_pytorch_tanh")
    attention_cap: float | None = 50.0
    logit_cap_default: float | None = 30.0
    """Soft caps where the config has no field; a field that is null means none."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(
            config,
            # Rounded to the model's dtype first, as it was in training.
            embedding_scale=torch.tensor(config.shape.hidden_size**0.5, device="cpu").item(),
            logit_cap=config.field_or("final_logit_softcapping", self.logit_cap_default),
        )

    def attention(self, config: ModelConfig, layer: int) -> AttentionConfig:
        """Llama's, with a scale and a soft cap of the config's."""
        made = super().attention(config, layer)
        scale = config.get("query_pre_attn_scalar", 256) ** -0.5
        cap = config.field_or("attn_logit_softcapping", self.attention_cap)
        return replace(made, spec=replace(made.spec, scale=scale, softcap=cap))
