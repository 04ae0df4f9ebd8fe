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

from kvasir_engine.kernels.launch import begin, launch_options
from kvasir_engine.kernels.merge_parts import MOST_PARTS, merge_parts
from kvasir_engine.kernels.shared_prefix import SharedKeys
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


def own_tuning_for(programs: int, padded_dim: int) -> DecodeTuning:
    """`tuning_for` of what decodes that have a prefix in common have each of its own: few keys."""
    if programs >= 1024 and padded_dim <= 128:
        return DecodeTuning(keys=32, warps=1, stages=4)
    return DecodeTuning(keys=32, stages=2 if padded_dim > 128 else 4)


@triton.jit
def _add_prefix(
    best, total, acc, parts_ptr, lse_ptr, at, prefix_parts, own, dim, DIM: tl.constexpr
):
    """Running maximum, sum and mix of heads `at` after what they have in common with others, of
    which the first of `prefix_parts` parts are the first; rows that are not `own` stay."""
    for part in range(prefix_parts):
        index = at * prefix_parts + part
        lse = tl.load(lse_ptr + index, mask=own, other=NO_SCORE)
        mixed = tl.load(
            parts_ptr + index[:, None] * DIM + dim[None, :],
            mask=own[:, None] & (dim < DIM)[None, :],
            other=0.0,
        )
        higher = tl.maximum(best, lse)
        shrink, weight = tl.exp2(best - higher), tl.exp2(lse - higher)
        # A part without keys weighs nothing, and nobody wrote its values.
        mixed = tl.where((weight > 0.0)[:, None], mixed * weight[:, None], 0.0)
        acc = acc * shrink[:, None] + mixed
        total = total * shrink + weight
        best = higher
    return best, total, acc


@triton.jit(
    do_not_specialize=["table_stride", "parts", "prefix_parts"],
    # Parts of a packed copy begin anywhere, and no step should wait for another kernel for that.
    do_not_specialize_on_alignment=["table_ptr", "lens_ptr", "order_ptr", "prefix_lens_ptr"],
)
def _decode(
    q_ptr,
    cache_ptr,
    table_ptr,
    lens_ptr,
    order_ptr,
    prefix_lens_ptr,
    parts_ptr,
    lse_ptr,
    out_ptr,
    q_stride,
    table_stride,
    value_offset,
    scale,
    parts,
    prefix_parts,
    SPLIT: tl.constexpr,
    SHARED: tl.constexpr,
    JOINED: tl.constexpr,
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

    at = (entry * HEADS + head).to(tl.int64)
    if JOINED:
        grouped = own_row & (first > 0)
        best, total, acc = _add_prefix(
            best, total, acc, parts_ptr, lse_ptr, at, prefix_parts, grouped, dim, DIM
        )
    weight = tl.where(total > 0, total, 1.0)
    mixed = acc / weight[:, None]
    if SPLIT:
        at = at * (prefix_parts + parts) + prefix_parts + part
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
    shared: SharedKeys | None = None,
    order: torch.Tensor | None = None,
) -> None:
    """out = attention of q, both [entries, heads, head_dim], over each entry's keys.

    cache [2, blocks, block_size, kv_heads, head_dim]; block_table [entries, max_blocks] int32;
    seq_lens [entries] int32, the new token included. `shared` are leading keys that several
    entries have in common, attended to once for all of them. `order` [entries] int32 says which
    entry is begun first: those that take longest, best.
    """
    entries, heads, dim = q.shape
    kv_heads = cache.shape[3]
    group = heads // kv_heads
    padded_dim = max(16, triton.next_power_of_2(dim))
    prefix_parts = 0 if shared is None else shared.parts
    split = parts > 1
    partial, lse = out, out
    if split or shared is not None:
        shape = (entries, heads, prefix_parts + (parts if split else 0))
        partial = torch.empty((*shape, dim), dtype=torch.float32, device=q.device)
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    if shared is not None:
        shared.attend(
            q, cache, block_table, shared.prefixes, partial, lse,
            scale=scale, softcap=softcap, parts=prefix_parts,
        )  # fmt: skip
    _decode[(kv_heads * parts, entries)](
        q,
        cache,
        block_table,
        seq_lens,
        seq_lens if order is None else order,
        seq_lens if shared is None else shared.prefixes.prefix_lens,
        partial,
        lse,
        partial if split else out,
        q.stride(0),
        block_table.stride(0),
        cache.stride(0),
        kernel_scale(scale, softcap),
        parts,
        prefix_parts,
        SPLIT=split,
        SHARED=shared is not None,
        JOINED=shared is not None and not split,
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
    if split:
        merge_parts(partial, lse, out, prefix_parts, None if shared is None else shared.prefixes)
