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
from kvasir_engine.kernels.shared_prefix import SharedTuning, shared_prefix
from kvasir_engine.kernels.softmax import LOG2_E, NO_SCORE, kernel_scale, soft_cap

MOST_PARTS = 128


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """How the kernel is launched; chosen by measurement (benchmarks/gpu/attention.py)."""

    keys: int = 64
    """Keys of one iteration."""
    warps: int = 2
    stages: int = 3
    programs_per_sm: int = 4
    """Programs for each multiprocessor that parts are made for, at most."""
    least_keys: int = 128
    """Fewest keys worth a part of their own."""


@triton.jit
def _decode(
    q_ptr,
    cache_ptr,
    table_ptr,
    lens_ptr,
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
    entry, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
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


@triton.jit
def _merge(
    parts_ptr,
    lse_ptr,
    prefix_lens_ptr,
    out_ptr,
    parts,
    prefix_parts,
    SHARED: tl.constexpr,
    HEADS: tl.constexpr,
    MOST: tl.constexpr,
    AT_ONCE: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PDL: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    total_parts = prefix_parts + parts
    part, dim = tl.arange(0, MOST), tl.arange(0, PADDED_DIM)
    written = part < total_parts
    if SHARED:
        # An entry of no group has nothing in the prefix's parts.
        grouped = tl.load(prefix_lens_ptr + tl.program_id(0) // HEADS) > 0
        written &= grouped | (part >= prefix_parts)
    begin(PDL)
    lse = tl.load(lse_ptr + at * total_parts + part, mask=written, other=NO_SCORE)
    best = tl.max(lse, 0)
    total = tl.sum(tl.exp2(lse - best), 0)
    last = tl.max(tl.where(lse > NO_SCORE * 0.1, part + 1, 0), 0)
    acc = tl.zeros([PADDED_DIM], tl.float32)
    for start in range(0, last, AT_ONCE):
        some = start + tl.arange(0, AT_ONCE)
        used = some < last
        if SHARED:
            used &= grouped | (some >= prefix_parts)
        some_lse = tl.load(lse_ptr + at * total_parts + some, mask=used, other=NO_SCORE)
        # Loaded without waiting for the lse: what nobody wrote is anything, and thrown away.
        mixed = tl.load(
            parts_ptr + (at * total_parts + some)[:, None] * DIM + dim[None, :],
            mask=used[:, None] & (dim < DIM)[None, :],
            other=0.0,
        )
        weight = tl.exp2(some_lse - best)[:, None]
        acc += tl.sum(tl.where(weight > 0.0, mixed * weight, 0.0), 0)
    out = acc / total
    tl.store(out_ptr + at * DIM + dim, out.to(out_ptr.dtype.element_ty), mask=dim < DIM)


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


def merge_parts(
    partial: torch.Tensor,
    lse: torch.Tensor,
    out: torch.Tensor,
    prefix_parts: int,
    shared: SharedPrefixes | None,
) -> None:
    """out [entries, heads, head_dim] = the parts [entries, heads, parts, head_dim] by their lse
    [entries, heads, parts], base 2; the first `prefix_parts` of ungrouped entries are not read."""
    entries, heads, total, dim = partial.shape
    padded_dim = max(16, triton.next_power_of_2(dim))
    _merge[(entries * heads,)](
        partial,
        lse,
        lse if shared is None else shared.prefix_lens,
        out,
        total - prefix_parts,
        prefix_parts,
        SHARED=shared is not None,
        HEADS=heads,
        MOST=2 * MOST_PARTS,
        AT_ONCE=16,
        DIM=dim,
        PADDED_DIM=padded_dim,
        num_warps=2,
        **launch_options(out.device),
    )


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
) -> None:
    """out = attention of q, both [entries, heads, head_dim], over each entry's keys.

    cache [2, blocks, block_size, kv_heads, head_dim]; block_table [entries, max_blocks] int32;
    seq_lens [entries] int32, the new token included. With `shared`, leading keys that several
    entries have in common are attended to once for all of them, in `prefix_parts` parts.
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
    _decode[(entries, kv_heads, parts)](
        q,
        cache,
        block_table,
        seq_lens,
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
