"""The self-attention block of a decoder layer, over the paged cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from kvasir_engine.attention.base import AttentionSpec, attend, attend_cached, current_context
from kvasir_engine.device.collectives import tensor_parallel
from kvasir_engine.layers.block_output import Output
from kvasir_engine.layers.fused import FusedOps, fused_ops
from kvasir_engine.layers.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    local_heads,
    qkv_parts,
)
from kvasir_engine.layers.norm import RMSNorm, ShardedRMSNorm
from kvasir_engine.layers.rotary import RotaryTable, apply_rotary
from kvasir_engine.layers.weights import WeightShard, WeightSlot, parameter
from kvasir_engine.quantization.linear_method import Input


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
    """Norm of queries and keys before they are rotated: of each head, or, where it is
    ShardedRMSNorm, of the channels of all heads together."""
    norm_eps: float = 1e-6
    sinks: bool = False
    """True when each head has a sink, which the checkpoint has as `sinks`."""


class SelfAttention(nn.Module):
    """Projections, optional QK norm, rotation, paged attention, output projection."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        whole = config.spec
        heads, kv_heads = local_heads(whole.num_heads, whole.num_kv_heads)
        self.sinks = parameter(heads) if config.sinks else None
        local = replace(whole, num_heads=heads, num_kv_heads=kv_heads)
        self.spec = replace(local, sinks=self.sinks)
        self.qkv_proj = ColumnParallelLinear(
            config.hidden_size,
            qkv_parts(whole.num_heads, whole.num_kv_heads, whole.head_dim),
            bias=config.qkv_bias,
            fused=config.fused_qkv,
        )
        self.o_proj = RowParallelLinear(
            whole.num_heads * whole.head_dim, config.hidden_size, bias=config.output_bias
        )
        self.q_norm, self.k_norm = _qk_norms(config)

    def forward(self, x: Input, rotary: RotaryTable) -> Output:
        """Map [tokens, hidden_size] to the same shape."""
        spec = self.spec
        shape = spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim
        fused = fused_ops(x.device)
        if fused is None:
            mixed = self._by_torch(self.qkv_proj(x).view(-1, *shape), rotary)
        else:
            # Only `store_qkv` sums parts.
            normed_first = isinstance(self.q_norm, ShardedRMSNorm)
            heads = self.qkv_proj(x) if normed_first else self.qkv_proj.summed_later(x)
            mixed = self._by_kernels(heads.view(*heads.shape[:-1], *shape), rotary, fused)
        out: Output = self.o_proj(mixed.flatten(1))
        return out

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return the slot of the sinks, if there are some; projections have slots of their own."""
        if self.sinks is None:
            return {}
        ranks, local = tensor_parallel(), len(self.sinks)
        shard = WeightShard(self.sinks.data, start=ranks.rank * local)
        return {f"{path}.sinks": WeightSlot((ranks.size * local,), (shard,))}

    @property
    def quantizes_tokens(self) -> bool:
        """True if the kernel before it may quantise its inputs."""
        return self.qkv_proj.quantizes_tokens

    def _by_kernels(
        self, heads: torch.Tensor, rotary: RotaryTable, fused: FusedOps
    ) -> torch.Tensor:
        spec, norm = self.spec, None
        if isinstance(self.q_norm, ShardedRMSNorm) and isinstance(self.k_norm, ShardedRMSNorm):
            _norm_all_heads(heads, spec, self.q_norm, self.k_norm, fused)
        elif self.q_norm is not None and self.k_norm is not None:
            weights = self.q_norm.weight, self.k_norm.weight
            norm = fused.qk_norm(*weights, self.q_norm.eps, self.q_norm.offset)
        context, tokens = current_context(), heads.shape[-3]
        cache, slots = context.caches[spec.layer], context.batch_of(spec).slot_mapping
        q = None
        if context.queries is not None and tokens <= context.queries.tokens:
            q = context.queries.queries_of(spec, tokens)
        scales = context.scales_of(spec)
        q = fused.store_qkv(heads, *rotary, norm, cache, slots, spec.num_heads, q=q, scales=scales)
        return attend_cached(spec, q)

    def _by_torch(self, heads: torch.Tensor, rotary: RotaryTable) -> torch.Tensor:
        spec = self.spec
        qk, v = heads.tensor_split((spec.num_heads + spec.num_kv_heads,), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.tensor_split((spec.num_heads,), dim=1)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)
        q, k = apply_rotary(qk, rotary).tensor_split((spec.num_heads,), dim=1)
        return attend(spec, q, k, v)


def _qk_norms(config: AttentionConfig) -> tuple[RMSNorm | None, RMSNorm | None]:
    kind, spec, eps = config.qk_norm, config.spec, config.norm_eps
    if kind is None:
        return None, None
    if not issubclass(kind, ShardedRMSNorm):
        return kind(spec.head_dim, eps), kind(spec.head_dim, eps)
    q, k, _ = qkv_parts(spec.num_heads, spec.num_kv_heads, spec.head_dim)
    return (
        kind(q.size, eps, local=q.local, start=q.start),
        kind(k.size, eps, local=k.local, start=k.start),
    )


def _norm_all_heads(
    heads: torch.Tensor,
    spec: AttentionSpec,
    q_norm: ShardedRMSNorm,
    k_norm: ShardedRMSNorm,
    fused: FusedOps,
) -> None:
    """Norm queries and keys of `heads` in place, each over the channels of all heads."""
    if tensor_parallel().size == 1:
        fused.norm_all_heads(heads, q_norm.weight, k_norm.weight, q_norm.eps)
        return
    ends = (spec.num_heads, spec.num_heads + spec.num_kv_heads)
    q, k, _ = heads.tensor_split(ends, dim=1)
    for norm, part in ((q_norm, q), (k_norm, k)):
        part.copy_(norm(part))
