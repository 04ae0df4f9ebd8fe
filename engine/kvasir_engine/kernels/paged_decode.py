"""Attention of one new token an entry over paged KV: flash-decoding with split keys.

Each program takes one entry, one KV head and one part of the keys, so that a batch of few entries
still fills the GPU; all query heads of the KV head are rows of one matrix product, padded to the
16 rows that a tensor core multiplies at least. Parts are merged by their log-sum-exp (Dao et al.,
"Flash-Decoding for long-context inference", 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """How the kernel is launched; chosen by measurement (benchmarks/gpu/attention.py)."""

    keys: int = 64
    """Keys of one iteration."""
    warps: int = 2
    stages: int = 3
    programs_per_sm: int = 8
    """Programs wanted for each multiprocessor: decides the number of parts."""
    least_keys: int = 128
    """Fewest keys worth a part of their own."""


@triton.jit
def soft_cap(scores, CAP: tl.constexpr):
    """CAP * tanh(scores / CAP), by exp alone."""
    return CAP * (1.0 - 2.0 / (tl.exp(scores * (2.0 / CAP)) + 1.0))


@triton.jit
def _decode(
    q_ptr,
    cache_ptr,
    table_ptr,
    lens_ptr,
    out_ptr,
    lse_ptr,
    q_stride,
    table_stride,
    value_offset,
    scale,
    PARTS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    entry, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lens_ptr + entry)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    each = tl.cdiv(tl.cdiv(length - first, PARTS), KEYS) * KEYS
    begin = first + part * each
    end = tl.minimum(begin + each, length)

    row, dim = tl.arange(0, ROWS), tl.arange(0, PADDED_DIM)
    head = kv_head * GROUP + row
    own_row, own_dim = row < GROUP, dim < DIM
    q = tl.load(
        q_ptr + entry * q_stride + head[:, None] * DIM + dim[None, :],
        mask=own_row[:, None] & own_dim[None, :],
        other=0.0,
    )
    best = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for start in range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS)
        seen = key < end
        block = tl.load(table_ptr + entry * table_stride + key // BLOCK, mask=seen, other=0)
        offset = ((block.to(tl.int64) * BLOCK + key % BLOCK) * KV_HEADS + kv_head) * DIM
        k = tl.load(
            cache_ptr + offset[None, :] + dim[:, None],
            mask=seen[None, :] & own_dim[:, None],
            other=0.0,
        )
        v = tl.load(
            cache_ptr + value_offset + offset[:, None] + dim[None, :],
            mask=seen[:, None] & own_dim[None, :],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision=PRECISION) * scale
        if CAP > 0.0:
            scores = soft_cap(scores, CAP)
        scores = tl.where(seen[None, :], scores * 1.4426950408889634, -1e30)
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        acc += tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        best = higher

    weight = tl.where(total > 0, total, 1.0)
    mixed = acc / weight[:, None]
    at = ((entry * HEADS + head) * PARTS + part).to(tl.int64)
    tl.store(
        out_ptr + at[:, None] * DIM + dim[None, :],
        mixed.to(out_ptr.dtype.element_ty),
        mask=own_row[:, None] & own_dim[None, :],
    )
    if PARTS > 1:
        lse = tl.where(total > 0, best + tl.log2(weight), -1e30)
        tl.store(lse_ptr + at, lse, mask=own_row)


@triton.jit
def _merge(
    parts_ptr,
    lse_ptr,
    out_ptr,
    PARTS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    part, dim = tl.arange(0, PADDED_PARTS), tl.arange(0, PADDED_DIM)
    lse = tl.load(lse_ptr + at * PARTS + part, mask=part < PARTS, other=-1e30)
    weight = tl.exp2(lse - tl.max(lse, 0))
    mixed = tl.load(
        parts_ptr + (at * PARTS + part)[:, None] * DIM + dim[None, :],
        mask=(part < PARTS)[:, None] & (dim < DIM)[None, :],
        other=0.0,
    )
    out = tl.sum(mixed * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out_ptr + at * DIM + dim, out.to(out_ptr.dtype.element_ty), mask=dim < DIM)


def num_parts(
    entries: int, kv_heads: int, longest: int, multiprocessors: int, tuning: DecodeTuning
) -> int:
    """Parts of the keys, a power of two: enough programs for the GPU, enough keys for a part."""
    wanted = -(-multiprocessors * tuning.programs_per_sm // max(1, entries * kv_heads))
    most = max(1, longest // tuning.least_keys)
    parts = 1
    while parts * 2 <= min(wanted, most, 128):
        parts *= 2
    return parts


def paged_decode(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    parts: int,
    tuning: DecodeTuning,
) -> None:
    """out = attention of q, both [entries, heads, head_dim], over each entry's keys.

    cache [2, blocks, block_size, kv_heads, head_dim]; block_table [entries, max_blocks] int32;
    seq_lens [entries] int32, the new token included.
    """
    entries, heads, dim = q.shape
    kv_heads = cache.shape[3]
    group = heads // kv_heads
    padded_dim = max(16, triton.next_power_of_2(dim))
    target, lse = out, out
    if parts > 1:
        target = torch.empty((entries, heads, parts, dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((entries, heads, parts), dtype=torch.float32, device=q.device)
    _decode[(entries, kv_heads, parts)](
        q,
        cache,
        block_table,
        seq_lens,
        target,
        lse,
        q.stride(0),
        block_table.stride(0),
        cache.stride(0),
        scale,
        PARTS=parts,
        HEADS=heads,
        KV_HEADS=kv_heads,
        GROUP=group,
        ROWS=max(16, triton.next_power_of_2(group)),
        DIM=dim,
        PADDED_DIM=padded_dim,
        BLOCK=cache.shape[2],
        KEYS=tuning.keys,
        WINDOW=window or 0,
        CAP=softcap or 0.0,
        PRECISION="ieee",
        num_warps=tuning.warps,
        # Shared memory holds the keys and values of all stages: heads of 256 in fp32 have fewer.
        num_stages=tuning.stages if padded_dim * q.element_size() <= 512 else 2,
    )
    if parts > 1:
        _merge[(entries * heads,)](
            target,
            lse,
            out,
            PARTS=parts,
            PADDED_PARTS=triton.next_power_of_2(parts),
            DIM=dim,
            PADDED_DIM=padded_dim,
            num_warps=1 if parts * padded_dim <= 2048 else 4,
        )
