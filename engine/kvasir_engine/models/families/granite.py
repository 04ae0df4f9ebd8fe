"""Granite 3: Llama's layers with multipliers on embeddings, attention, residuals and logits."""

from __future__ import annotations

from dataclasses import replace

from kvasir_engine.layers.attention import AttentionConfig
from kvasir_engine.models.config import ModelConfig
from kvasir_engine.models.families.llama import LlamaForCausalLM


class GraniteForCausalLM(LlamaForCausalLM):
    """Granite 3, whose blocks' outputs y are added to the hidden state as x + m y.

    The hidden state is kept as x / m here, so that it is x / m + y and needs no multiplication:
    norms of it are the same when their eps is divided by m squared.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(
            config,
            embedding_scale=config.get("embedding_multiplier", 1.0) / _residual(config),
            logit_scale=1.0 / config.get("logits_scaling", 1.0),
        )

    def eps(self, config: ModelConfig) -> float:
        """Number that norms of the scaled hidden state add to its variance."""
        return super().eps(config) / _residual(config) ** 2

    def attention(self, config: ModelConfig, layer: int) -> AttentionConfig:
        """Llama's, with a scale of the config's."""
        made = super().attention(config, layer)
        scale = float(config.get("attention_multiplier", 1.0))
        return replace(made, spec=replace(made.spec, scale=scale))


def _residual(config: ModelConfig) -> float:
    multiplier = float(config.get("residual_multiplier", 1.0))
    if multiplier <= 0:
        raise ValueError(f"config field 'residual_multiplier' must be above 0, not {multiplier}")
    return multiplier
