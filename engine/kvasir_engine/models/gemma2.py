"""Gemma 2: norms before and after each block, soft caps, windows in every other layer."""

from __future__ import annotations

import torch
from torch import nn

from kvasir_engine.layers.attention import AttentionConfig, SelfAttention
from kvasir_engine.layers.norm import GemmaRMSNorm
from kvasir_engine.layers.rotary import RotaryTable
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.decoder import (
    Decoder,
    DecoderForCausalLM,
    attention_config,
    dense_mlp,
)


class GemmaLayer(nn.Module):
    """Attention and MLP, each between a norm of its input and one of its output."""

    def __init__(self, attention: AttentionConfig, mlp: nn.Module) -> None:
        super().__init__()
        size, eps = attention.hidden_size, attention.norm_eps
        self.self_attn = SelfAttention(attention)
        self.mlp = mlp
        self.input_layernorm = GemmaRMSNorm(size, eps)
        self.post_attention_layernorm = GemmaRMSNorm(size, eps)
        self.pre_feedforward_layernorm = GemmaRMSNorm(size, eps)
        self.post_feedforward_layernorm = GemmaRMSNorm(size, eps)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, rotary: RotaryTable
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The layer's own output and the residual it is still to be added to."""
        if residual is None:
            normed, residual = self.input_layernorm(x), x
        else:
            normed, residual = self.input_layernorm.add(x, residual)
        attended = self.post_attention_layernorm(self.self_attn(normed, rotary))
        normed, residual = self.pre_feedforward_layernorm.add(attended, residual)
        return self.post_feedforward_layernorm(self.mlp(normed)), residual


class Gemma2ForCausalLM(DecoderForCausalLM):
    """Embeddings are scaled by the square root of the hidden size, and tied to the head."""

    def __init__(self, config: ModelConfig) -> None:
        size = config.shape.hidden_size
        layers = [
            GemmaLayer(gemma_attention(config, i, cap=50.0), gemma_mlp(config))
            for i in range(config.shape.num_layers)
        ]
        norm = GemmaRMSNorm(size, config.get("rms_norm_eps", 1e-6))
        model = Decoder(config, layers, norm, [config.rotary()], embedding_scale=size**0.5)
        super().__init__(config, model, logit_cap=config.field_or("final_logit_softcapping", 30.0))


def gemma_attention(
    config: ModelConfig, layer: int, cap: float | None = None, qk_norm: bool = False
) -> AttentionConfig:
    """A layer's attention; `cap` is the family's soft cap where the config has no field."""
    return attention_config(
        config,
        layer,
        scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
        softcap=config.field_or("attn_logit_softcapping", cap),
        qk_norm=GemmaRMSNorm if qk_norm else None,
    )


def gemma_mlp(config: ModelConfig) -> nn.Module:
    """The gated MLP with Gemma's activation."""
    return dense_mlp(config, config.get("hidden_activation", "gelu_pytorch_tanh"))
