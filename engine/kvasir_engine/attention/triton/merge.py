"""Merge partial attention results by their log-sum-exp."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.attention.base import SharedPrefixes
from kvasir_engine.attention.triton.online_softmax import LOG2_E, NO_SCORE
from kvasir_engine.device.launch import begin, launch_options

MAX_SPLITS = 128
"""Most splits of an entry's own keys, and as many of what it shares."""
SMALL_SPLITS = 32
"""Most batches have no more, and take less time when no more are looked at."""


@triton.jit(
    do_not_specialize=["parts", "prefix_parts"],
    # Parts of a packed copy begin anywhere, and no step should wait for another kernel for that.
    do_not_specialize_on_alignment=["prefix_lens_ptr"],
)
def _merge(
    parts_ptr,
    lse_ptr,
    prefix_lens_ptr,
    out_ptr,
    sinks_ptr,
    parts,
    prefix_parts,
    SHARED: tl.constexpr,
    SINKS: tl.constexpr,
    HEADS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PDL: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64)
    total_parts = prefix_parts + parts
    part, dim = tl.arange(0, PADDED_SPLITS), tl.arange(0, PADDED_DIM)
    written = part < total_parts
    if SHARED:
        # An entry of no group has nothing in the prefix's parts.
        grouped = tl.load(prefix_lens_ptr + tl.program_id(0) // HEADS) > 0
        written &= grouped | (part >= prefix_parts)
    begin(PDL)
    lse = tl.load(lse_ptr + at * total_parts + part, mask=written, other=NO_SCORE)
    best = tl.max(lse, 0)
    if SINKS:
        sink = tl.load(sinks_ptr + tl.program_id(0) % HEADS).to(tl.float32) * LOG2_E
        best = tl.maximum(best, sink)
    total = tl.sum(tl.exp2(lse - best), 0)
    if SINKS:
        total += tl.exp2(sink - best)
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


def merge_splits(
    partial: torch.Tensor,
    lse: torch.Tensor,
    out: torch.Tensor,
    prefix_parts: int,
    shared: SharedPrefixes | None,
    sinks: torch.Tensor | None,
) -> None:
    """out [entries, heads, head_dim] = the parts [entries, heads, parts, head_dim] by their lse
    [entries, heads, parts], base 2, and the heads' `sinks`; the first `prefix_parts` of ungrouped
    entries are not read."""
    entries, heads, total, dim = partial.shape
    padded_dim = max(16, triton.next_power_of_2(dim))
    _merge[(entries * heads,)](
        partial,
        lse,
        lse if shared is None else shared.prefix_lens,
        out,
        lse if sinks is None else sinks,
        total - prefix_parts,
        prefix_parts,
        SHARED=shared is not None,
        SINKS=sinks is not None,
        HEADS=heads,
        PADDED_SPLITS=SMALL_SPLITS if total <= SMALL_SPLITS else 2 * MAX_SPLITS,
        AT_ONCE=16,
        DIM=dim,
        PADDED_DIM=padded_dim,
        num_warps=2,
        **launch_options(out.device),
    )
