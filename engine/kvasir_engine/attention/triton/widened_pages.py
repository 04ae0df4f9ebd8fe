"""Pages of a float8 cache in the model's type, for kernels that attend to many queries at once.

What a step's prompts attend to is copied, one layer after the other, into a buffer that all layers
share: the tensor cores of Hopper multiply 16 bits by 16 bits or float8 by float8, and values in
float8 would have to be transposed for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
import triton
import triton.language as tl

from kvasir_engine.attention.base import AttentionBatch, AttentionSpec
from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.device.upload import upload
from kvasir_engine.kv.cache_spec import KVScales

CHUNK = 4096
"""Numbers that a program copies at a time."""


@triton.jit(
    do_not_specialize=["table_stride", "first_entry"],
    # Parts of a packed copy begin anywhere, and no step should wait for another kernel for that.
    do_not_specialize_on_alignment=["table_ptr", "lens_ptr", "starts_ptr", "target_ptr"],
)
def _widen(
    cache_ptr,
    table_ptr,
    target_ptr,
    lens_ptr,
    starts_ptr,
    out_ptr,
    first_entry,
    table_stride,
    value_offset,
    out_value_offset,
    key_scale,
    value_scale,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    WINDOW: tl.constexpr,
    PDL: tl.constexpr,
):
    begin(PDL)
    page, entry = tl.program_id(0), first_entry + tl.program_id(1)
    length = tl.load(lens_ptr + entry)
    if page * BLOCK >= length:
        return
    if WINDOW > 0:
        new = tl.load(starts_ptr + entry + 1) - tl.load(starts_ptr + entry)
        if (page + 1) * BLOCK <= length - new - WINDOW + 1:
            return
    source = tl.load(table_ptr + entry * table_stride + page).to(tl.int64) * SIZE
    target = tl.load(target_ptr + entry * table_stride + page).to(tl.int64) * SIZE
    for start in range(0, SIZE, CHUNK):
        at = start + tl.arange(0, CHUNK)
        inside = at < SIZE
        k = tl.load(cache_ptr + source + at, mask=inside)
        v = tl.load(cache_ptr + value_offset + source + at, mask=inside)
        k = k.to(tl.float32) * key_scale
        v = v.to(tl.float32) * value_scale
        to = out_ptr + target + at
        tl.store(to, k.to(out_ptr.dtype.element_ty), mask=inside)
        tl.store(to + out_value_offset, v.to(out_ptr.dtype.element_ty), mask=inside)


class WidenedPages:
    """A buffer of pages in the model's type, shared by all layers in turn."""

    def __init__(
        self,
        specs: Sequence[AttentionSpec],
        *,
        tokens: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate for entries of at most `tokens` tokens each."""
        self.blocks = -(-tokens // block_size)
        self._block_size = block_size
        width = max(spec.num_kv_heads * spec.head_dim for spec in specs)
        size = 2 * self.blocks * block_size * width
        self._all = torch.zeros(size, dtype=dtype, device=device)

    def portions(self, batch: AttentionBatch) -> list[AttentionBatch]:
        """Return the batch's prefills in portions that fit the buffer, whose block tables name its
        pages: each a batch whose entries before its first one count as decodes."""
        if batch.portions is None:
            batch.portions = self._divide(batch)
        return batch.portions

    def _divide(self, batch: AttentionBatch) -> list[AttentionBatch]:
        entries, width = batch.block_table.shape
        begin = batch.num_decodes
        pages = [-(-length // self._block_size) for length in batch.seq_lens_cpu]
        first = np.zeros(entries, dtype=np.int32)
        ends = []
        taken = 0
        # A lone prompt may be replayed from a graph with a longer one's keys before it.
        for entry in range(begin, entries) if entries - begin > 1 else ():
            if taken and taken + pages[entry] > self.blocks:
                ends.append(entry)
                taken = 0
            first[entry], taken = taken, taken + pages[entry]
        numbers = torch.arange(width, dtype=torch.int32, device=batch.block_table.device)
        table = upload(first, batch.block_table.device)[:, None] + numbers
        bounds = [begin, *ends, entries]
        return [
            replace(
                batch,
                block_table=table,
                num_decodes=start,
                query_lens_cpu=batch.query_lens_cpu[:end],
            )
            for start, end in pairwise(bounds)
        ]

    def fill(
        self,
        spec: AttentionSpec,
        cache: torch.Tensor,
        batch: AttentionBatch,
        portion: AttentionBatch,
        scales: KVScales,
    ) -> torch.Tensor:
        """Return [2, blocks, block_size, kv_heads, head_dim] with the pages of the entries of a
        portion of `batch`, those outside the layer's window left as they were."""
        block, heads, dim = cache.shape[2:]
        size = block * heads * dim
        out = self._all[: 2 * self.blocks * size].view(2, self.blocks, block, heads, dim)
        first, end = portion.num_decodes, len(portion.query_lens_cpu)
        _widen[(portion.block_table.shape[1], end - first)](
            cache,
            batch.block_table,
            portion.block_table,
            batch.seq_lens,
            batch.query_start,
            out,
            first,
            batch.block_table.stride(0),
            cache.stride(0),
            out.stride(0),
            scales.key,
            scales.value,
            BLOCK=block,
            SIZE=size,
            CHUNK=min(CHUNK, triton.next_power_of_2(size)),
            WINDOW=spec.window or 0,
            num_warps=4,
            **launch_options(cache.device),
        )
        return out
