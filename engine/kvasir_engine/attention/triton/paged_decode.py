"""Attention of one new token an entry over paged KV: flash-decoding with split keys.

Each program takes one entry, one KV head and one part of the keys, so that a batch of few entries
still fills the GPU; all query heads of the KV head are rows of one GEMM, padded to the
16 rows that a tensor core multiplies at least. Parts are merged by their log-sum-exp (Dao et al.,
"Flash-Decoding for long-context inference", 2023): by a kernel of its own where every entry has as
many, and where they are divided by length (`split_kv.py`) by an entry's last program to end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.attention.base import AttentionBatch, AttentionSpec, KVSplits
from kvasir_engine.attention.compiled_kernels import CompiledKernels
from kvasir_engine.attention.triton.decode_keys import attend_fp8, attend_plain
from kvasir_engine.attention.triton.decode_tuning import DecodeTuning
from kvasir_engine.attention.triton.fp8_cache import as_pairs
from kvasir_engine.attention.triton.merge import merge_splits
from kvasir_engine.attention.triton.online_softmax import (
    NO_SCORE,
    add_sink,
    kernel_scale,
    merge_partial,
)
from kvasir_engine.attention.triton.shared_prefix import SharedKeys
from kvasir_engine.attention.triton.split_kv import FIELDS
from kvasir_engine.device.float8 import is_fp8
from kvasir_engine.device.launch import begin, launch_options, prefetch
from kvasir_engine.kv.cache_spec import UNSCALED, KVScales

PREFETCHED_KEYS = tl.constexpr(64)
"""Keys of a part that are asked for while the kernel before still runs."""


@triton.jit
def _merge_prefix(
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
        best, total, acc = merge_partial(best, total, acc, lse, mixed)
    return best, total, acc


@triton.jit
def _equal_split(
    lens_ptr, order_ptr, prefix_lens_ptr, entry, part, parts,
    SHARED: tl.constexpr, ORDERED: tl.constexpr, KEYS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """(entry, its first own key, the part's first key, the one after its last): one of as many
    parts of every entry, which are looked up in the order they are begun in."""
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
    return entry, first, start_at, tl.minimum(start_at + each, length)


@triton.jit
def _prefetch_keys(
    cache_ptr, blocks_ptr, value_offset, kv_head, start_at, end,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Ask for the first keys and values of a part, in heads of `DIM` numbers of 16 bits. Only the
    newest of a sequence is written by the kernel before, and a line that is asked for too early is
    read again."""
    if PDL:
        key = start_at + tl.arange(0, PREFETCHED_KEYS)
        block = tl.load(blocks_ptr + key // BLOCK, mask=key < end, other=0)
        offset = ((block.to(tl.int64) * BLOCK + key % BLOCK) * KV_HEADS + kv_head) * DIM
        # A cache line is 64 numbers of 16 bits.
        for channel in tl.static_range(0, DIM, 64):
            prefetch(cache_ptr + offset + channel, PDL)
            prefetch(cache_ptr + value_offset + offset + channel, PDL)


@triton.jit
def _merged(
    parts_ptr, lse_ptr, at, step, count, own_row, dim,
    ROWS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Maximum, sum and mix of `count` parts that programs of this launch wrote, of which the first
    are rows `at` [ROWS] and the others follow `step` rows apart."""
    best = tl.full([ROWS], NO_SCORE, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for start in range(0, count, AT_ONCE):
        for some in tl.static_range(AT_ONCE):
            # All of these are asked for before the first one is waited for.
            there = own_row & (start + some < count)
            index = at + (start + some) * step
            lse = tl.load(lse_ptr + index, mask=there, other=NO_SCORE, cache_modifier=".cg")
            mixed = tl.load(
                parts_ptr + index[:, None] * DIM + dim[None, :],
                mask=there[:, None] & (dim < DIM)[None, :],
                other=0.0,
                cache_modifier=".cg",
            )
            best, total, acc = merge_partial(best, total, acc, lse, mixed)
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
    kv_splits_ptr,
    arrivals_ptr,
    parts_ptr,
    lse_ptr,
    out_ptr,
    sinks_ptr,
    q_stride,
    table_stride,
    value_offset,
    scale,
    value_scale,
    parts,
    prefix_parts,
    FP8: tl.constexpr,
    ASM: tl.constexpr,
    SPLIT: tl.constexpr,
    SHARED: tl.constexpr,
    JOINED: tl.constexpr,
    ORDERED: tl.constexpr,
    SPLIT_KV: tl.constexpr,
    SINKS: tl.constexpr,
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
    AT_ONCE: tl.constexpr,
    PDL: tl.constexpr,
):
    # Programs begin in this order: all heads of an entry, whose keys lie beside each other, one
    # after the other, and the entries that take longest first.
    kv_head, part = tl.program_id(0) % KV_HEADS, tl.program_id(0) // KV_HEADS
    index, count, first = tl.program_id(1), 1, 0
    if SPLIT_KV:
        splits = kv_splits_ptr + index * FIELDS
        entry, part, count = tl.load(splits), tl.load(splits + 1), tl.load(splits + 2)
        start_at, end = tl.load(splits + 3), tl.load(splits + 4)
        if entry < 0:
            return
    else:
        entry, first, start_at, end = _equal_split(
            lens_ptr, order_ptr, prefix_lens_ptr, index, part, parts, SHARED, ORDERED, KEYS, WINDOW
        )
    _prefetch_keys(
        cache_ptr, table_ptr + entry * table_stride, value_offset, kv_head, start_at, end,
        KV_HEADS, DIM // 2 if FP8 else DIM, BLOCK, PDL,
    )  # fmt: skip
    begin(PDL)

    row, dim = tl.arange(0, ROWS), tl.arange(0, PADDED_DIM)
    head = kv_head * GROUP + row
    own_row, own_dim = row < GROUP, dim < DIM
    q_row, table_row = q_ptr + entry * q_stride, table_ptr + entry * table_stride
    if FP8:
        best, total, acc = attend_fp8(
            q_row + head * DIM, cache_ptr, table_row, value_offset, scale, value_scale, kv_head,
            own_row, start_at, end, KV_HEADS, ROWS, DIM, PADDED_DIM, BLOCK, KEYS, CAP, ASM,
        )  # fmt: skip
    else:
        best, total, acc = attend_plain(
            q_row, cache_ptr, table_row, value_offset, scale, kv_head, head, own_row, start_at, end,
            KV_HEADS, ROWS, DIM, PADDED_DIM, BLOCK, KEYS, CAP, PRECISION,
        )  # fmt: skip

    if SPLIT_KV and count > 1:
        at = index * HEADS + head
        tl.store(
            parts_ptr + at[:, None] * DIM + dim[None, :],
            acc / total[:, None],
            mask=own_row[:, None] & own_dim[None, :],
        )
        tl.store(lse_ptr + at, best + tl.log2(total), mask=own_row)
        # All threads' stores come before the count that tells another program of them.
        tl.debug_barrier()
        arrived = arrivals_ptr + entry * KV_HEADS + kv_head
        if tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") < count - 1:
            return
        # As the next layer wants to find it.
        tl.store(arrived, 0)
        at = (index - part) * HEADS + head
        best, total, acc = _merged(
            parts_ptr, lse_ptr, at, HEADS, count, own_row, dim, ROWS, DIM, PADDED_DIM, AT_ONCE
        )

    at = (entry * HEADS + head).to(tl.int64)
    if JOINED:
        grouped = own_row & (first > 0)
        best, total, acc = _merge_prefix(
            best, total, acc, parts_ptr, lse_ptr, at, prefix_parts, grouped, dim, DIM
        )
    if SINKS and not SPLIT:
        total, acc = add_sink(best, total, acc, sinks_ptr, head, own_row)
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


_compiled = CompiledKernels(_decode)


def paged_decode(
    spec: AttentionSpec,
    q: torch.Tensor,
    cache: torch.Tensor,
    batch: AttentionBatch,
    out: torch.Tensor,
    *,
    parts: int,
    tuning: DecodeTuning,
    shared: SharedKeys | None = None,
    splits: KVSplits | None = None,
    scales: KVScales = UNSCALED,
) -> None:
    """out = attention of q, both [decodes, heads, head_dim], over each one's keys.

    cache [2, blocks, block_size, kv_heads, head_dim], of q's type or of float8, whose numbers are
    multiplied by `scales`. `shared` are leading keys that several
    entries have in common, attended to once for all of them. `splits` says who attends to what,
    instead of `parts` of every entry's keys; there are no window and no shared keys then.
    """
    block_table, seq_lens, order = batch.block_table, batch.seq_lens, batch.decode_order
    entries, heads, dim = q.shape
    kv_heads = cache.shape[3]
    group = heads // kv_heads
    prefix_parts = 0 if shared is None else shared.parts
    split = parts > 1
    programs = kv_heads * parts, entries
    partial, lse = out, out
    shape: tuple[int, ...] = ()
    if splits is not None:
        programs = kv_heads, len(splits.parts)
        shape = len(splits.parts), heads
    elif split or shared is not None:
        shape = entries, heads, prefix_parts + (parts if split else 0)
    if shape:
        partial = torch.empty((*shape, dim), dtype=torch.float32, device=q.device)
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    if shared is not None:
        given = spec, q, cache, block_table, shared.prefixes, partial, lse
        shared.attend(*given, parts=prefix_parts, scales=scales)
    fp8 = is_fp8(cache)
    stored = as_pairs(cache) if fp8 else cache
    arguments = (
        q,
        stored,
        block_table,
        seq_lens,
        seq_lens if order is None else order,
        seq_lens if shared is None else shared.prefixes.prefix_lens,
        seq_lens if splits is None else splits.parts,
        seq_lens if splits is None else splits.arrivals,
        partial,
        lse,
        partial if split else out,
        out if spec.sinks is None else spec.sinks,
        q.stride(0),
        block_table.stride(0),
        stored.stride(0),
        kernel_scale(spec.scale * scales.key, spec.softcap),
        scales.value,
        parts,
        prefix_parts,
    )
    options = launch_options(q.device)
    constants = (
        fp8,
        q.device.type == "cuda",  # ASM
        split,
        shared is not None,
        shared is not None and not split,  # JOINED
        order is not None,
        splits is not None,
        spec.sinks is not None,
        heads,
        kv_heads,
        group,
        max(16, triton.next_power_of_2(group)),  # ROWS
        dim,
        # A tensor core takes 16 channels at least, of float8 the even ones or the odd ones.
        max(32 if fp8 else 16, triton.next_power_of_2(dim)),  # PADDED_DIM
        cache.shape[2],  # BLOCK
        tuning.keys,
        spec.window or 0,
        spec.softcap or 0.0,
        "ieee",
        # More of them make the compiler wait for keys one after the other.
        tuning.warps,  # AT_ONCE
        options["PDL"],
    )
    specialised = *arguments[:2], *arguments[6:12]
    kinds = tuple((each.dtype, each.data_ptr() % 16 == 0) for each in specialised)
    _compiled.launch(
        (*programs, 1),
        (constants, tuning.stages, kinds, q.stride(0), stored.stride(0), q.device),
        (*arguments, *constants),
        num_warps=tuning.warps,
        num_stages=tuning.stages,
        launch_pdl=options["launch_pdl"],
    )
    if split:
        prefixes = None if shared is None else shared.prefixes
        merge_splits(partial, lse, out, prefix_parts, prefixes, spec.sinks)
