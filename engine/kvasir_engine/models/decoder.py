"""The decoder that the native families share: embedding, layers, final norm, head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from kvasir_engine.attention.base import AttentionSpec
from kvasir_engine.layers.attention import AttentionConfig, SelfAttention
from kvasir_engine.layers.embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
    project_to_vocab,
)
from kvasir_engine.layers.norm import RMSNorm
from kvasir_engine.layers.rotary import RotaryConfig, RotaryEmbedding, RotaryTable
from kvasir_engine.layers.weights import Slot, model_slots
from kvasir_engine.models.base import soft_cap
from kvasir_engine.models.config import ModelConfig


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm of its input (pre-norm)."""

    def __init__(self, attention: AttentionConfig, mlp: nn.Module) -> None:
        super().__init__()
        self.self_attn = SelfAttention(attention)
        self.mlp = mlp
        self.input_layernorm = RMSNorm(attention.hidden_size, attention.norm_eps)
        self.post_attention_layernorm = RMSNorm(attention.hidden_size, attention.norm_eps)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, rotary: RotaryTable
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The layer's own output and the residual it is still to be added to."""
        if residual is None:
            normed, residual = self.input_layernorm(x), x
        else:
            normed, residual = self.input_layernorm.add(x, residual)
        attended = self.self_attn(normed, rotary)
        normed, residual = self.post_attention_layernorm.add(attended, residual)
        return self.mlp(normed), residual


class Decoder(nn.Module):
    """Everything below the head. `rotary_of_layer` names one of `rotary` for each layer."""

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[nn.Module],
        norm: RMSNorm,
        rotary: Sequence[RotaryConfig],
        rotary_of_layer: Sequence[int] | None = None,
        embedding_scale: float | None = None,
    ) -> None:
        super().__init__()
        shape = config.shape
        self.embed_tokens = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.rotary = nn.ModuleList(RotaryEmbedding(r) for r in rotary)
        self.rotary_of_layer = list(rotary_of_layer or [0] * len(layers))
        self.embedding_scale = embedding_scale

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states [tokens, hidden_size] after the final norm."""
        x = self.embed_tokens(token_ids)
        if self.embedding_scale is not None:
            # The factor is rounded to the model's dtype first, as it was in training.
            x = x * torch.tensor(self.embedding_scale, dtype=x.dtype).item()
        tables = [rotary(positions, x.dtype) for rotary in self.rotary]
        residual: torch.Tensor | None = None
        for layer, table in zip(self.layers, self.rotary_of_layer, strict=True):
            x, residual = layer(x, residual, tables[table])
        return self.norm(x) if residual is None else self.norm.add(x, residual)[0]


class DecoderForCausalLM(nn.Module):
    """A decoder with its head, tied or not."""

    def __init__(self, config: ModelConfig, model: Decoder) -> None:
        super().__init__()
        shape = config.shape
        self.model = model
        self.lm_head = (
            None
            if shape.tie_word_embeddings
            else ParallelLMHead(shape.vocab_size, shape.hidden_size)
        )
        self.logit_cap: float | None = config.get("final_logit_softcapping")
        self.attention_specs: list[AttentionSpec] = [
            module.spec for module in model.modules() if isinstance(module, SelfAttention)
        ]

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """CausalLM.__call__."""
        hidden: torch.Tensor = self.model(token_ids, positions)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """CausalLM.logits."""
        table = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return soft_cap(project_to_vocab(hidden, table).float(), self.logit_cap)

    def checkpoint_slots(self) -> dict[str, Slot]:
        """The checkpoint tensors that the model is made of."""
        return model_slots(self)


def attention_config(config: ModelConfig, layer: int, **changes: object) -> AttentionConfig:
    """A layer's attention as the shape gives it; `changes` are the family's own fields."""
    shape = config.shape
    fields: dict[str, object] = {
        "layer": layer,
        "hidden_size": shape.hidden_size,
        "num_heads": shape.num_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "scale": shape.head_dim**-0.5,
        "window": shape.layer_windows[layer],
        "qkv_bias": shape.qkv_bias,
        "output_bias": shape.output_bias,
        "norm_eps": config.get("rms_norm_eps", 1e-6),
    }
    return AttentionConfig(**(fields | changes))  # type: ignore[arg-type]
