"""Causal attention of many new tokens an entry over paged KV, cached prefixes included.

FlashAttention-2 (Dao, 2023) over entries of any length: each program takes a tile of one entry's
new tokens with all query heads of one KV head as rows, so that a key is loaded once for the whole
group, and walks the keys its tokens may see.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvasir_engine.attention.base import AttentionBatch, AttentionSpec
from kvasir_engine.attention.triton.online_softmax import (
    NO_SCORE,
    add_sink,
    attend_keys,
    kernel_scale,
)
from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.device.tile_memory import TileTuning


@dataclass(frozen=True, slots=True)
class PrefillTuning(TileTuning):
    """Chosen by measurement (benchmarks/gpu/attention.py)."""

    rows: int = 64
    keys: int = 64
    warps: int = 4
    stages: int = 2


@triton.jit(
    do_not_specialize=["table_stride"],
    # Parts of a packed copy begin anywhere, and no step should wait for another kernel for that.
    do_not_specialize_on_alignment=["table_ptr", "lens_ptr", "starts_ptr", "tiles_ptr"],
)
def _prefill(
    q_ptr,
    cache_ptr,
    table_ptr,
    lens_ptr,
    starts_ptr,
    tiles_ptr,
    out_ptr,
    sinks_ptr,
    q_stride,
    table_stride,
    value_offset,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    begin(PDL)
    entry = tl.load(tiles_ptr + 2 * tl.program_id(0))
    tile = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1)
    kv_head = tl.program_id(1)
    first_token, end = tl.load(starts_ptr + entry), tl.load(starts_ptr + entry + 1)
    if tile * TOKENS >= end - first_token:
        return
    length = tl.load(lens_ptr + entry)
    before = length - (end - first_token)

    row, dim = tl.arange(0, ROWS), tl.arange(0, PADDED_DIM)
    new = tile * TOKENS + row // GROUP
    head = kv_head * GROUP + row % GROUP
    own = (new < end - first_token) & (row < TOKENS * GROUP)
    position = tl.where(own, before + new, 0)
    at = (first_token + new).to(tl.int64)
    loaded = own[:, None] & (dim < DIM)[None, :]
    q = tl.load(
        q_ptr + at[:, None] * q_stride + head[:, None] * DIM + dim[None, :],
        mask=loaded,
        other=0.0,
    )
    best = tl.full([ROWS], NO_SCORE, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    table_row = table_ptr + entry * table_stride

    lowest = before + tile * TOKENS
    highest = tl.minimum(lowest + TOKENS, length)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(lowest - WINDOW + 1, 0) // KEYS * KEYS
    else:
        # Whole blocks of keys that every token of the tile sees need no mask.
        plain = lowest // KEYS * KEYS
        for start in range(0, plain, KEYS):
            best, total, acc = attend_keys(
                q, best, total, acc, start, position, length, cache_ptr, table_row, kv_head,
                value_offset, scale, False, KV_HEADS, DIM, PADDED_DIM, BLOCK, KEYS, WINDOW, CAP,
                PRECISION,
            )  # fmt: skip
        first = plain
    for start in range(first, highest, KEYS):
        best, total, acc = attend_keys(
            q, best, total, acc, start, position, length, cache_ptr, table_row, kv_head,
            value_offset, scale, True, KV_HEADS, DIM, PADDED_DIM, BLOCK, KEYS, WINDOW, CAP,
            PRECISION,
        )  # fmt: skip
    if SINKS:
        total, acc = add_sink(best, total, acc, sinks_ptr, head, own)
    mixed = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(
        out_ptr + (at * HEADS + head)[:, None] * DIM + dim[None, :],
        mixed.to(out_ptr.dtype.element_ty),
        mask=loaded,
    )


def tile_tokens(heads: int, kv_heads: int, tuning: PrefillTuning) -> int:
    """New tokens of a tile: `tuning.rows` of them times the heads of a group."""
    return max(1, tuning.rows // (heads // kv_heads))


def paged_prefill(
    spec: AttentionSpec,
    q: torch.Tensor,
    cache: torch.Tensor,
    batch: AttentionBatch,
    tiles: torch.Tensor,
    out: torch.Tensor,
    tuning: PrefillTuning,
) -> None:
    """out = causal attention of q, both [tokens, heads, head_dim].

    tiles [n, 2] int32: (entry, which run of `tile_tokens` of its new tokens), passed over where it
    has fewer.
    """
    _, heads, dim = q.shape
    kv_heads = cache.shape[3]
    group = heads // kv_heads
    tokens = tile_tokens(heads, kv_heads, tuning)
    _prefill[(tiles.shape[0], kv_heads)](
        q,
        cache,
        batch.block_table,
        batch.seq_lens,
        batch.query_start,
        tiles,
        out,
        out if spec.sinks is None else spec.sinks,
        q.stride(0),
        batch.block_table.stride(0),
        cache.stride(0),
        kernel_scale(spec.scale, spec.softcap),
        HEADS=heads,
        KV_HEADS=kv_heads,
        GROUP=group,
        TOKENS=tokens,
        ROWS=max(16, triton.next_power_of_2(tokens * group)),
        DIM=dim,
        PADDED_DIM=max(16, triton.next_power_of_2(dim)),
        BLOCK=cache.shape[2],
        KEYS=tuning.keys,
        WINDOW=spec.window or 0,
        CAP=spec.softcap or 0.0,
        SINKS=spec.sinks is not None,
        PRECISION="ieee",
        num_warps=tuning.warps,
        num_stages=tuning.stages,
        **launch_options(q.device),
    )
