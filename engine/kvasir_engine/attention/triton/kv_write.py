"""Scatters the keys and values of a step's tokens into the paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.float8 import is_fp8
from kvasir_engine.device.to_float8 import to_fp8
from kvasir_engine.kv.cache_spec import UNSCALED, KVScales


@triton.jit
def _write(
    k_ptr,
    v_ptr,
    cache_ptr,
    slots_ptr,
    k_stride,
    v_stride,
    value_offset,
    inverse_key,
    inverse_value,
    FP8: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
):
    token = tl.program_id(0)
    slot = tl.load(slots_ptr + token)
    at = tl.arange(0, PADDED)
    inside = at < SIZE
    k = tl.load(k_ptr + token * k_stride + at, mask=inside)
    v = tl.load(v_ptr + token * v_stride + at, mask=inside)
    if FP8:
        k, v = to_fp8(k, inverse_key), to_fp8(v, inverse_value)
    target = cache_ptr + slot * SIZE + at
    tl.store(target, k, mask=inside)
    tl.store(target + value_offset, v, mask=inside)


def write_kv(
    cache: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    scales: KVScales = UNSCALED,
) -> None:
    """cache[0 and 1] at `slots` [tokens] = k, v [tokens, kv_heads, head_dim].

    cache [2, blocks, block_size, kv_heads, head_dim], contiguous, by `scales` where it is of
    float8; a token of k or v is contiguous.
    """
    size = k.shape[1] * k.shape[2]
    if k.stride()[1:] != (k.shape[2], 1) or v.stride()[1:] != (v.shape[2], 1):
        k, v = k.contiguous(), v.contiguous()
    _write[(k.shape[0],)](
        k,
        v,
        cache,
        slots,
        k.stride(0),
        v.stride(0),
        cache.stride(0),
        1.0 / scales.key,
        1.0 / scales.value,
        FP8=is_fp8(cache),
        SIZE=size,
        PADDED=triton.next_power_of_2(size),
    )
