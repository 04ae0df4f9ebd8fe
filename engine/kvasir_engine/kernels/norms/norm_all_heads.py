"""RMS norms of queries and keys over the channels of all heads together (OLMo 2)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options


@triton.jit
def _norm_all_heads(
    x_ptr,
    q_weight_ptr,
    k_weight_ptr,
    x_stride,
    eps,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PADDED: tl.constexpr,
    PDL: tl.constexpr,
):
    begin(PDL)
    is_key = tl.program_id(1) == 1
    size = tl.where(is_key, KEYS, QUERIES)
    at = tl.arange(0, PADDED)
    inside = at < size
    row = x_ptr + tl.program_id(0).to(tl.int64) * x_stride + tl.where(is_key, QUERIES, 0)
    x = tl.load(row + at, mask=inside, other=0.0).to(tl.float32)
    of_query = tl.load(q_weight_ptr + at, mask=inside & (at < QUERIES), other=0.0)
    of_key = tl.load(k_weight_ptr + at, mask=inside & (at < KEYS), other=0.0)
    weight = tl.where(is_key, of_key, of_query).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / size + eps)
    tl.store(row + at, (x * scale * weight).to(x_ptr.dtype.element_ty), mask=inside)


def norm_all_heads(
    x: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float
) -> None:
    """Norm queries and keys in place.

    x [tokens, heads + 2 kv_heads, head_dim]: queries, keys and values, tokens may lie apart;
    weights [heads * head_dim] and [kv_heads * head_dim].
    """
    queries, keys = q_weight.shape[0], k_weight.shape[0]
    padded = triton.next_power_of_2(max(queries, keys))
    if x.shape[0]:
        _norm_all_heads[(x.shape[0], 2)](
            x,
            q_weight,
            k_weight,
            x.stride(0),
            eps,
            QUERIES=queries,
            KEYS=keys,
            PADDED=padded,
            num_warps=8 if padded > 2048 else 4,
            **launch_options(x.device),
        )
