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

from kvasir_engine.attention.base import SharedPrefixes
from kvasir_engine.kernels.launch import begin, launch_options
from kvasir_engine.kernels.merge_parts import MOST_PARTS, merge_parts
from kvasir_engine.kernels.shared_prefix import SharedTuning, shared_prefix
from kvasir_engine.kernels.softmax import LOG2_E, NO_SCORE, kernel_scale, soft_cap


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """How the kernel is launched."""

    keys: int = 64
    """Keys of one iteration."""
    warps: int = 2
    stages: int = 3
    programs_per_sm: int = 4
    """Programs for each multiprocessor that parts are made for, at most."""
    least_keys: int = 128
    """Fewest keys worth a part of their own."""


FEW_PROGRAMS = 16


def tuning_for(programs: int, padded_dim: int) -> DecodeTuning:
    """By entries x KV heads, as measured (benchmarks/gpu/attention.py): many programs are best
    when small, since more of them run beside each other."""
    if padded_dim > 128:
        return DecodeTuning()
    if programs <= FEW_PROGRAMS or 256 <= programs <= 800:
        return DecodeTuning(keys=128, warps=4, stages=2)
    return DecodeTuning(keys=32, warps=1, stages=6 if programs < 256 else 4)


@triton.jit(do_not_specialize=["table_stride", "parts", "prefix_parts"])
def _decode(
    q_ptr,
    cache_ptr,
    table_ptr,
    lens_ptr,
    order_ptr,
    prefix_lens_ptr,
    out_ptr,
    lse_ptr,
    q_stride,
    table_stride,
    value_offset,
    scale,
    parts,
    prefix_parts,
    SPLIT: tl.constexpr,
    SHARED: tl.constexpr,
    ORDERED: tl.constexpr,
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
    PDL: tl.constexpr,
):
    # Programs begin in this order: all heads of an entry, whose keys lie beside each other, one
    # after the other, and the entries that take longest first.
    kv_head, part = tl.program_id(0) % KV_HEADS, tl.program_id(0) // KV_HEADS
    entry = tl.program_id(1)
    if ORDERED:
        entry = tl.load(order_ptr + entry)
    length = tl.load(lens_ptr + entry)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    if SHARED:
        first = tl.load(prefix_lens_ptr + entry)
    each = tl.cdiv(tl.cdiv(length - first, parts), KEYS) * KEYS
    start_at = first + part * each
    end = tl.minimum(start_at + each, length)
    begin(PDL)

    row, dim = tl.arange(0, ROWS), tl.arange(0, PADDED_DIM)
    head = kv_head * GROUP + row
    own_row, own_dim = row < GROUP, dim < DIM
    q = tl.load(
        q_ptr + entry * q_stride + head[:, None] * DIM + dim[None, :],
        mask=own_row[:, None] & own_dim[None, :],
        other=0.0,
    )
    best = tl.full([ROWS], NO_SCORE, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for start in range(start_at, end, KEYS):
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
            scores = soft_cap(scores, CAP) * LOG2_E
        scores = tl.where(seen[None, :], scores, NO_SCORE)
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        acc += tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        best = higher

    weight = tl.where(total > 0, total, 1.0)
    mixed = acc / weight[:, None]
    total_parts = prefix_parts + parts
    at = (entry * HEADS + head).to(tl.int64) * total_parts + prefix_parts + part
    # Nobody reads the values of a part without keys, except where it is the only one.
    wanted = own_row
    if SPLIT:
        wanted &= start_at < end
    tl.store(
        out_ptr + at[:, None] * DIM + dim[None, :],
        mixed.to(out_ptr.dtype.element_ty),
        mask=wanted[:, None] & own_dim[None, :],
    )
    if SPLIT:
        lse = tl.where(total > 0, best + tl.log2(weight), NO_SCORE)
        tl.store(lse_ptr + at, lse, mask=own_row)


def num_parts(
    entries: int, kv_heads: int, longest: int, multiprocessors: int, tuning: DecodeTuning
) -> int:
    """Parts of the keys, a power of two: enough programs for the GPU, enough keys for a part."""
    wanted = multiprocessors * tuning.programs_per_sm // max(1, entries * kv_heads)
    most = max(1, longest // tuning.least_keys)
    parts = 1
    while parts * 2 <= min(wanted, most, MOST_PARTS):
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
    shared: SharedPrefixes | None = None,
    prefix_parts: int = 0,
    shared_tuning: SharedTuning,
    order: torch.Tensor | None = None,
) -> None:
    """out = attention of q, both [entries, heads, head_dim], over each entry's keys.

    cache [2, blocks, block_size, kv_heads, head_dim]; block_table [entries, max_blocks] int32;
    seq_lens [entries] int32, the new token included. With `shared`, leading keys that several
    entries have in common are attended to once for all of them, in `prefix_parts` parts. `order`
    [entries] int32 says which entry is begun first: those that take longest, best.
    """
    entries, heads, dim = q.shape
    kv_heads = cache.shape[3]
    group = heads // kv_heads
    padded_dim = max(16, triton.next_power_of_2(dim))
    total_parts = prefix_parts + parts
    target, lse = out, out
    if total_parts > 1:
        shape = (entries, heads, total_parts)
        target = torch.empty((*shape, dim), dtype=torch.float32, device=q.device)
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    if shared is not None:
        shared_prefix(
            q, cache, block_table, shared, target, lse,
            scale=scale, softcap=softcap, parts=prefix_parts, tuning=shared_tuning,
        )  # fmt: skip
    _decode[(kv_heads * parts, entries)](
        q,
        cache,
        block_table,
        seq_lens,
        seq_lens if order is None else order,
        seq_lens if shared is None else shared.prefix_lens,
        target,
        lse,
        q.stride(0),
        block_table.stride(0),
        cache.stride(0),
        kernel_scale(scale, softcap),
        parts,
        prefix_parts,
        SPLIT=total_parts > 1,
        SHARED=shared is not None,
        ORDERED=order is not None,
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
        **launch_options(q.device),
    )
    if total_parts > 1:
        merge_parts(target, lse, out, prefix_parts, shared)
