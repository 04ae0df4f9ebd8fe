"""Attention of many queries over paged KV on Hopper GPUs: prompts, and shared prefixes of decodes.

Where these do not fit, and on other GPUs, `paged_prefill.py` and `shared_prefix.py` compute the
same at some 0.6 of the speed.
"""

from __future__ import annotations

from functools import cache as remembered
from typing import Any

import torch
import triton
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kvasir_engine.attention.base import AttentionBatch, AttentionSpec, SharedPrefixes
from kvasir_engine.attention.compiled_kernels import CompiledKernels
from kvasir_engine.attention.hopper.attend_tiles import OPTIONS, ROWS, AttentionShape, attend_tiles
from kvasir_engine.attention.hopper.tiles import CHANNELS, PAGE_LAYOUT
from kvasir_engine.attention.triton.online_softmax import kernel_scale
from kvasir_engine.attention.triton.shared_prefix import entries_at_once
from kvasir_engine.device.launch import launch_options
from kvasir_engine.kv.cache_spec import UNSCALED, KVScales

MAX_HEAD_DIM = 256

compiled = CompiledKernels(attend_tiles)
"""The kernels, by shape first."""


def supports_layer(spec: AttentionSpec, cache: torch.Tensor) -> bool:
    """Return True when such a layer over such a cache is computed here."""
    block = cache.shape[2]
    return (
        cache.dtype in (torch.float16, torch.bfloat16)
        and spec.head_dim <= MAX_HEAD_DIM
        and spec.num_heads // spec.num_kv_heads <= ROWS
        # Shared memory is swizzled by 8 rows; a head begins at a multiple of 16 bytes: a copy from
        # in between (heads of 12 numbers) was an illegal instruction.
        and block % 8 == 0
        and _keys(spec.head_dim) % block == 0
        and spec.head_dim * cache.itemsize % 16 == 0
    )


def hopper_tile_tokens(heads: int, kv_heads: int) -> int:
    """Return the number of new tokens of a program."""
    return ROWS // (heads // kv_heads)


def _keys(dim: int) -> int:
    """Return the keys of a tile: two of each, keys and values, fit shared memory beside the
    queries."""
    return 128 if dim <= 128 else 64


@remembered
def make_shape(
    block: int,
    heads: int,
    kv_heads: int,
    dim: int,
    window: int | None,
    cap: float | None,
    tile: int,
    *,
    sinks: bool = False,
) -> AttentionShape:
    """Return the compile-time shape of a prefill, or with `tile` of a shared-prefix decode; cached,
    since every launch asks."""
    tokens = hopper_tile_tokens(heads, kv_heads)
    return AttentionShape(
        block=block,
        heads=heads,
        group=heads // kv_heads,
        tokens=entries_at_once(tile, tokens) if tile else tokens,
        dim=dim,
        window=window or 0,
        cap=cap or 0.0,
        shared=tile > 0,
        tile=tile,
        sinks=sinks,
    )


@remembered
def constants(shape: AttentionShape) -> dict[str, Any]:
    """Return the constants that `attend_tiles` is compiled with."""
    width = max(CHANNELS.value, triton.next_power_of_2(shape.dim))
    return {"SHAPE": shape, "WIDTH": width, "KEYS": _keys(shape.dim), "STAGES": 2}


def _describe(cache: torch.Tensor) -> TensorDescriptor:
    """Return a cache [2, blocks, block_size, kv_heads, head_dim] as copies see it."""
    _, blocks, block, heads, dim = cache.shape
    width = heads * dim
    return TensorDescriptor(
        cache,
        [2, blocks, block, width],
        [cache.stride(0), block * width, width, 1],
        [1, 1, block, CHANNELS.value],
        PAGE_LAYOUT.value,
    )


def hopper_prefill(
    spec: AttentionSpec,
    q: torch.Tensor,
    cache: torch.Tensor,
    batch: AttentionBatch,
    tiles: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """`paged_prefill` in tiles of `hopper_tile_tokens`; q and out [tokens, heads, head_dim]."""
    _, heads, dim = q.shape
    _, _, block, kv_heads, _ = cache.shape
    sinks = out if spec.sinks is None else spec.sinks
    kinds = spec.window, spec.softcap, 0
    shape = make_shape(block, heads, kv_heads, dim, *kinds, sinks=spec.sinks is not None)
    _launch(
        (tiles.shape[0], kv_heads, 1), shape, q, cache, batch.block_table, batch.seq_lens,
        batch.query_start, tiles, out, out, sinks, kernel_scale(spec.scale, spec.softcap),
        total_parts=1, parts=1,
    )  # fmt: skip


def hopper_shared_prefix(
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
    """`shared_prefix.shared_prefix` over a cache of the model's type, with as many of a tile's
    entries a program as fit."""
    if scales != UNSCALED:
        raise ValueError("The kernels for Hopper read no scaled cache.")
    _, heads, dim = q.shape
    _, _, block, kv_heads, _ = cache.shape
    tiles, tile = shared.tile_entries.shape
    shape = make_shape(block, heads, kv_heads, dim, None, spec.softcap, tile)
    _launch(
        (tiles * (tile // shape.tokens), kv_heads, parts), shape, q, cache, block_table,
        shared.tile_lens, shared.tile_lens, shared.tile_entries, partial, lse, lse,
        kernel_scale(spec.scale, spec.softcap), total_parts=partial.shape[2], parts=parts,
    )  # fmt: skip


def _launch(
    grid: tuple[int, int, int],
    shape: AttentionShape,
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    lens: torch.Tensor,
    starts: torch.Tensor,
    which: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    sinks: torch.Tensor,
    scale: float,
    *,
    total_parts: int,
    parts: int,
) -> None:
    options = launch_options(q.device)
    arguments = (
        q,
        _describe(cache),
        block_table,
        lens,
        starts,
        which,
        out,
        lse,
        sinks,
        q.stride(0),
        block_table.stride(0),
        cache.shape[1],
        scale,
        total_parts,
        parts,
        *constants(shape).values(),
        options["PDL"],
    )
    aligned = q.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    key = shape, q.dtype, q.stride(0), aligned, q.device
    compiled.launch(grid, key, arguments, **OPTIONS, launch_pdl=options["launch_pdl"])
