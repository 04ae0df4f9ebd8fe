"""The decoder that the native families share: embedding, layers, final norm, head."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from torch import nn

from kvasir_engine.attention.base import AttentionSpec
from kvasir_engine.device.vocab_shard import VocabShard
from kvasir_engine.layers.attention import AttentionConfig, SelfAttention
from kvasir_engine.layers.block_output import Output
from kvasir_engine.layers.embedding import VocabParallelEmbedding
from kvasir_engine.layers.fused import fused_ops
from kvasir_engine.layers.linear import ParallelLinear
from kvasir_engine.layers.mlp import GatedMLP
from kvasir_engine.layers.moe import MoE
from kvasir_engine.layers.norm import Norm, RMSNorm
from kvasir_engine.layers.rotary import RotaryConfig, RotaryEmbedding, RotaryTable
from kvasir_engine.models.config import ModelConfig


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm of its input (pre-norm)."""

    norm_type: type[Norm] = RMSNorm
    norm_names: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """Norms of the hidden state, by their names in the checkpoint."""
    input_layernorm: Norm
    post_attention_layernorm: Norm

    def __init__(self, attention: AttentionConfig, mlp: GatedMLP | MoE) -> None:
        super().__init__()
        self.self_attn = SelfAttention(attention)
        self.mlp = mlp
        for name in self.norm_names:
            setattr(self, name, self.norm_type(attention.hidden_size, attention.norm_eps))

    def forward(
        self, x: Output, residual: torch.Tensor | None, rotary: RotaryTable
    ) -> tuple[Output, torch.Tensor | None]:
        """The layer's own output and the residual it is still to be added to."""
        normed, residual = self.input_layernorm.add_rows(x, residual, self.self_attn)
        attended = self.self_attn(normed, rotary)
        normed, residual = self.post_attention_layernorm.add_rows(attended, residual, self.mlp)
        return self.mlp(normed), residual


class Decoder(nn.Module):
    """Layers below the head. Layer i rotates by `rotary[rotary_of_layer[i]]`, and token embeddings
    are multiplied by `embedding_scale`."""

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[nn.Module],
        norm: Norm,
        rotary: Sequence[RotaryConfig],
        rotary_of_layer: Sequence[int],
        embedding_scale: float | None = None,
    ) -> None:
        super().__init__()
        shape = config.shape
        self.embed_tokens = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.rotary = nn.ModuleList(RotaryEmbedding(r) for r in rotary)
        self.rotary_of_layer = list(rotary_of_layer)
        self.embedding_scale = embedding_scale

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states [tokens, hidden_size] after the final norm."""
        x = self.embed_tokens(token_ids)
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        tables = [rotary(positions, x.dtype) for rotary in self.rotary]
        output: Output = x
        residual: torch.Tensor | None = None
        for layer, table in zip(self.layers, self.rotary_of_layer, strict=True):
            output, residual = layer(output, residual, tables[table])
        return self.norm.add(output, residual)[0]


class DecoderForCausalLM(nn.Module):
    """A decoder with its head, tied or not. Logits are multiplied by `logit_scale`; `logit_cap` is
    a soft cap on them."""

    graph_safe = True
    unused_prefixes: tuple[str, ...] = ()
    """Beginnings of checkpoint names that the model leaves out on purpose."""

    def __init__(
        self,
        config: ModelConfig,
        model: Decoder,
        *,
        logit_cap: float | None = None,
        logit_scale: float | None = None,
    ) -> None:
        super().__init__()
        shape = config.shape
        self.model = model
        self.lm_head: VocabParallelEmbedding | None = None
        if shape.tie_word_embeddings:
            self.unused_prefixes += ("lm_head.",)
        else:
            self.lm_head = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size)
        self.logit_cap = logit_cap
        self.logit_scale = logit_scale
        self.attention_specs: list[AttentionSpec] = [
            module.spec for module in model.modules() if isinstance(module, SelfAttention)
        ]

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """CausalLM.__call__."""
        hidden: torch.Tensor = self.model(token_ids, positions)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """CausalLM.logits."""
        return self._head.gathered(self.shard_logits(hidden))

    @property
    def _head(self) -> VocabParallelEmbedding:
        return self.model.embed_tokens if self.lm_head is None else self.lm_head

    @property
    def vocab_shard(self) -> VocabShard | None:
        """CausalLM.vocab_shard."""
        return self._head.shard

    def shard_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """CausalLM.shard_logits."""
        logits = self._head.project_shard(hidden)
        if self.logit_scale is not None:
            logits = logits.mul_(self.logit_scale)
        if self.logit_cap is None:
            return logits
        fused = fused_ops(logits.device)
        if fused is not None and logits.is_contiguous():
            return fused.soft_cap(logits, self.logit_cap)
        # In place: with a vocabulary of 256,000 each copy of 256 rows is 262 MB.
        return logits.float().div_(self.logit_cap).tanh_().mul_(self.logit_cap)

    def keep_distinct_layers(self) -> None:
        """Leave out layers that launch what another one before them does."""
        model = self.model
        kinds: dict[Hashable, tuple[nn.Module, int]] = {}
        for layer, table in zip(model.layers, model.rotary_of_layer, strict=True):
            kinds.setdefault((_kind_of(layer), table), (layer, table))
        model.layers = nn.ModuleList(layer for layer, _ in kinds.values())
        model.rotary_of_layer = [table for _, table in kinds.values()]

    @staticmethod
    def slot_name(name: str) -> str:
        """The name here of the tensor that the checkpoint calls `name`."""
        return name


def _kind_of(layer: nn.Module) -> Hashable:
    specs = [
        replace(part.spec, layer=0) for part in layer.modules() if isinstance(part, SelfAttention)
    ]
    kinds = (
        (type(part), part.method if isinstance(part, ParallelLinear) else None)
        for part in layer.modules()
    )
    return tuple(specs), tuple(kinds)
