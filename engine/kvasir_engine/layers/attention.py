"""The self-attention block of a decoder layer, over the paged cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from kvasir_engine.attention.base import AttentionSpec, attend, attend_cached, current_context
from kvasir_engine.layers.fused import FusedOps, fused_ops
from kvasir_engine.layers.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    local_heads,
    qkv_parts,
)
from kvasir_engine.layers.norm import RMSNorm
from kvasir_engine.layers.rotary import RotaryTable, apply_rotary


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """One layer's attention over all ranks."""

    spec: AttentionSpec
    """The layer's attention with the heads of all ranks."""
    hidden_size: int
    qkv_bias: bool = False
    output_bias: bool = False
    fused_qkv: bool = False
    """True when the checkpoint stores queries, keys and values as one tensor."""
    qk_norm: type[RMSNorm] | None = None
    """Norm of each head's query and key before they are rotated."""
    norm_eps: float = 1e-6


class SelfAttention(nn.Module):
    """Projections, optional QK norm, rotation, paged attention, output projection."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        whole = config.spec
        heads, kv_heads = local_heads(whole.num_heads, whole.num_kv_heads)
        self.spec = replace(whole, num_heads=heads, num_kv_heads=kv_heads)
        self.qkv_proj = ColumnParallelLinear(
            config.hidden_size,
            qkv_parts(whole.num_heads, whole.num_kv_heads, whole.head_dim),
            bias=config.qkv_bias,
            fused=config.fused_qkv,
        )
        self.o_proj = RowParallelLinear(
            whole.num_heads * whole.head_dim, config.hidden_size, bias=config.output_bias
        )
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.qk_norm is not None:
            self.q_norm = config.qk_norm(whole.head_dim, config.norm_eps)
            self.k_norm = config.qk_norm(whole.head_dim, config.norm_eps)

    def forward(self, x: torch.Tensor, rotary: RotaryTable) -> torch.Tensor:
        """Map [tokens, hidden_size] to the same shape."""
        spec = self.spec
        heads = self.qkv_proj(x).view(-1, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        fused = fused_ops(x.device)
        if fused is None:
            mixed = self._by_torch(heads, rotary)
        else:
            mixed = self._by_kernels(heads, rotary, fused)
        out: torch.Tensor = self.o_proj(mixed.flatten(1))
        return out

    def _by_kernels(
        self, heads: torch.Tensor, rotary: RotaryTable, fused: FusedOps
    ) -> torch.Tensor:
        spec, norm = self.spec, None
        if self.q_norm is not None and self.k_norm is not None:
            weights = self.q_norm.weight, self.k_norm.weight
            norm = fused.qk_norm(*weights, self.q_norm.eps, self.q_norm.offset)
        context, tokens = current_context(), len(heads)
        cache, slots = context.caches[spec.layer], context.batch_of(spec).slot_mapping
        q = None
        if context.queries is not None and tokens <= context.queries.tokens:
            q = context.queries.queries_of(spec, tokens)
        q = fused.store_qkv(heads, *rotary, norm, cache, slots, spec.num_heads, q=q)
        return attend_cached(spec, q)

    def _by_torch(self, heads: torch.Tensor, rotary: RotaryTable) -> torch.Tensor:
        spec = self.spec
        qk, v = heads.tensor_split((spec.num_heads + spec.num_kv_heads,), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.tensor_split((spec.num_heads,), dim=1)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)
        q, k = apply_rotary(qk, rotary).tensor_split((spec.num_heads,), dim=1)
        return attend(spec, q, k, v)
