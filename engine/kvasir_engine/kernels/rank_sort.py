"""Rank sort for small arrays on the device: compare all pairs; faster than a general sort."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options


@triton.jit(do_not_specialize=["count"])
def _order(
    keys_ptr, order_ptr, count,
    DESCENDING: tl.constexpr, AT_ONCE: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store the order of all numbers: a stable counting sort by comparisons."""
    begin(PDL)
    mine = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    own = mine < count
    key = tl.load(keys_ptr + mine, mask=own, other=0)
    before = tl.zeros([AT_ONCE, CHUNK], tl.int32)
    for start in range(0, count, CHUNK):
        other = start + tl.arange(0, CHUNK)
        # What lies behind the last one comes after any of them.
        behind: tl.constexpr = -(1 << 30) if DESCENDING else 1 << 30
        theirs = tl.load(keys_ptr + other, mask=other < count, other=behind)
        first = theirs[None, :] < key[:, None]
        if DESCENDING:
            first = theirs[None, :] > key[:, None]
        tie = (theirs[None, :] == key[:, None]) & (other[None, :] < mine[:, None])
        before += (first | tie).to(tl.int32)
    tl.store(order_ptr + tl.sum(before, 1), mine, mask=own)


def rank_sort(keys: torch.Tensor, *, descending: bool = False) -> torch.Tensor:
    """Indices int32 [n] that sort contiguous `keys`, int32 of n numbers within 2^30 of 0; equal
    ones stay in their order."""
    count = keys.numel()
    found = torch.empty(count, dtype=torch.int32, device=keys.device)
    _order[(triton.cdiv(count, 32),)](
        keys,
        found,
        count,
        DESCENDING=descending,
        AT_ONCE=32,
        CHUNK=128,
        **launch_options(keys.device),
    )
    return found
