"""Attention of decodes over leading keys that they have in common: once, as one GEMM.

Entries whose leading blocks are the same physical blocks stand in tiles of `TILE_ENTRIES`; all
query heads of a KV head and all entries of a tile are rows of one product, so that a key is read
once a tile instead of once an entry. What comes out is merged with the entries' own keys by
log-sum-exp (Juravsky et al., "Hydragen", 2024). Which entries belong together is device data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import triton
import triton.language as tl

from kvasir_engine.attention.base import AttentionSpec, SharedPrefixes
from kvasir_engine.attention.triton.decode_keys import attend_fp8
from kvasir_engine.attention.triton.fp8_cache import as_pairs
from kvasir_engine.attention.triton.online_softmax import NO_SCORE, attend_keys, kernel_scale
from kvasir_engine.device.float8 import is_fp8
from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.device.tile_memory import TileTuning
from kvasir_engine.kv.cache_spec import UNSCALED, KVScales


class PrefixAttention(Protocol):
    """`shared_prefix`, or another kernel that computes the same."""

    def __call__(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        block_table: torch.Tensor,
        shared: SharedPrefixes,
        partial: torch.Tensor,
        lse: torch.Tensor,
        *,
        parts: int,
        scales: KVScales = UNSCALED,
    ) -> None:
        """The first `parts` parts of `partial` [entries, heads, parts, head_dim] fp32 and `lse`
        [entries, heads, parts], base 2, for entries of a group; others' are left as they are."""


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """Shared prefixes of a batch and the kernel that attends to them."""

    prefixes: SharedPrefixes
    parts: int
    attend: PrefixAttention


@dataclass(frozen=True, slots=True)
class SharedTuning(TileTuning):
    """Chosen by measurement (benchmarks/gpu/attention.py)."""

    rows: int = 128
    keys: int = 128
    warps: int = 8
    stages: int = 3


def entries_at_once(tile: int, most: int) -> int:
    """Return the most entries, at most `most`, that divide a tile of a power of two."""
    return min(tile, 1 << max(0, most.bit_length() - 1))


@triton.jit(
    do_not_specialize=["table_stride", "total_parts"],
    # Parts of a packed copy begin anywhere, and no step should wait for another kernel for that.
    do_not_specialize_on_alignment=["table_ptr", "entries_ptr", "lens_ptr"],
)
def _shared_prefix(
    q_ptr,
    cache_ptr,
    table_ptr,
    entries_ptr,
    lens_ptr,
    out_ptr,
    lse_ptr,
    q_stride,
    table_stride,
    value_offset,
    scale,
    value_scale,
    total_parts,
    FP8: tl.constexpr,
    ASM: tl.constexpr,
    TILE: tl.constexpr,
    ENTRIES: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    CAP: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    per_tile: tl.constexpr = TILE // ENTRIES
    tile, kv_head, part = tl.program_id(0) // per_tile, tl.program_id(1), tl.program_id(2)
    first_entry = (tl.program_id(0) % per_tile) * ENTRIES
    length = tl.load(lens_ptr + tile)
    row, dim = tl.arange(0, ROWS), tl.arange(0, PADDED_DIM)
    entry = tl.load(
        entries_ptr + tile * TILE + first_entry + row // GROUP,
        mask=row < ENTRIES * GROUP,
        other=-1,
    )
    own = entry >= 0
    each = tl.cdiv(tl.cdiv(length, tl.num_programs(2)), KEYS) * KEYS
    start_at = part * each
    end = tl.minimum(start_at + each, length)
    begin(PDL)
    if tl.max(entry, 0) < 0:
        return
    head = kv_head * GROUP + row % GROUP
    q_rows = q_ptr + entry.to(tl.int64) * q_stride + head * DIM
    # All entries of a tile begin with the same blocks: any one's table will do.
    table_row = table_ptr + tl.load(entries_ptr + tile * TILE).to(tl.int64) * table_stride
    if FP8:
        best, total, acc = attend_fp8(
            q_rows, cache_ptr, table_row, value_offset, scale, value_scale, kv_head, own, start_at,
            end, KV_HEADS, ROWS, DIM, PADDED_DIM, BLOCK, KEYS, CAP, ASM,
        )  # fmt: skip
    else:
        asked = own[:, None] & (dim < DIM)[None, :]
        q = tl.load(q_rows[:, None] + dim[None, :], mask=asked, other=0.0)
        best = tl.full([ROWS], NO_SCORE, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)
        position = tl.zeros([ROWS], tl.int32) + end - 1
        whole = start_at + tl.maximum(end - start_at, 0) // KEYS * KEYS
        for start in range(start_at, whole, KEYS):
            best, total, acc = attend_keys(
                q, best, total, acc, start, position, end, cache_ptr, table_row, kv_head,
                value_offset, scale, False, KV_HEADS, DIM, PADDED_DIM, BLOCK, KEYS, 0, CAP,
                PRECISION,
            )  # fmt: skip
        for start in range(whole, end, KEYS):
            best, total, acc = attend_keys(
                q, best, total, acc, start, position, end, cache_ptr, table_row, kv_head,
                value_offset, scale, True, KV_HEADS, DIM, PADDED_DIM, BLOCK, KEYS, 0, CAP,
                PRECISION,
            )  # fmt: skip
    weight = tl.where(total > 0, total, 1.0)
    at = (entry.to(tl.int64) * HEADS + head) * total_parts + part
    tl.store(
        out_ptr + at[:, None] * DIM + dim[None, :],
        acc / weight[:, None],
        mask=own[:, None] & (dim < DIM)[None, :],
    )
    lse = tl.where(total > 0, best + tl.log2(weight), NO_SCORE)
    tl.store(lse_ptr + at, lse, mask=own)


def shared_prefix(
    spec: AttentionSpec,
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    shared: SharedPrefixes,
    partial: torch.Tensor,
    lse: torch.Tensor,
    *,
    parts: int,
    tuning: SharedTuning,
    scales: KVScales = UNSCALED,
) -> None:
    """`PrefixAttention`, launched as `tuning` says."""
    _, heads, dim = q.shape
    kv_heads, (tiles, tile) = cache.shape[3], shared.tile_entries.shape
    group = heads // kv_heads
    entries = entries_at_once(tile, tuning.rows // group)
    fp8 = is_fp8(cache)
    keys = as_pairs(cache) if fp8 else cache
    _shared_prefix[(tiles * (tile // entries), kv_heads, parts)](
        q,
        keys,
        block_table,
        shared.tile_entries,
        shared.tile_lens,
        partial,
        lse,
        q.stride(0),
        block_table.stride(0),
        keys.stride(0),
        kernel_scale(spec.scale * scales.key, spec.softcap),
        scales.value,
        partial.shape[2],
        FP8=fp8,
        ASM=q.device.type == "cuda",
        TILE=tile,
        ENTRIES=entries,
        HEADS=heads,
        KV_HEADS=kv_heads,
        GROUP=group,
        ROWS=max(16, triton.next_power_of_2(entries * group)),
        DIM=dim,
        PADDED_DIM=max(32 if fp8 else 16, triton.next_power_of_2(dim)),
        BLOCK=cache.shape[2],
        KEYS=tuning.keys,
        CAP=spec.softcap or 0.0,
        PRECISION="ieee",
        num_warps=tuning.warps if entries * group > 64 else 4,
        num_stages=tuning.stages,
        **launch_options(q.device),
    )
