"""Split-KV planning: divide the batch's keys into splits of about equal size, on the device, once a
step for all layers.

For contexts that differ much: with as many parts of each, the programs of a single long one are
busy long after all others have ended. Beside one part for each entry there are some more here,
which go to those that are longer than others. How long they are changes from step to step, while a
CUDA graph launches as many programs as when it was captured.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.attention.base import KVSplits
from kvasir_engine.attention.triton.decode_tuning import DecodeTuning
from kvasir_engine.device.launch import begin, launch_options

FIELDS = tl.constexpr(5)
"""Fields of a split: entry (-1 = unused), index within the entry, number of splits of the entry,
first key, end key. A program begins with one look at these."""
MAX_EXTRA_SPLITS = 64
"""Parts beside one for each entry: one program merges all of an entry's."""
EXTRA_PROGRAMS_PER_SM = 512 / 132
"""Beside one for each entry and KV head, at most: some four on each multiprocessor."""
AT_ONCE = 8
SMALL_ENTRIES = 512
"""Up to which one kernel serves all numbers of entries."""


@triton.jit
def _splits_of(lens, most, KEYS: tl.constexpr):
    """(parts, keys of each): of at most `most` keys before these are rounded up; no part of what
    is no entry and has no keys."""
    parts = tl.maximum(tl.cdiv(lens, most), 1)
    each = tl.maximum(tl.cdiv(tl.cdiv(lens, parts), KEYS), 1) * KEYS
    return tl.cdiv(lens, each), each


@triton.jit(
    do_not_specialize=["entries", "extra"],
    # Parts of a packed copy begin anywhere, and no step should wait for another kernel for that.
    do_not_specialize_on_alignment=["lens_ptr"],
)
def _split_keys(
    lens_ptr,
    parts_ptr,
    entries,
    extra,
    PADDED_ENTRIES: tl.constexpr,
    AT_ONCE: tl.constexpr,
    KEYS: tl.constexpr,
    MIN_KEYS: tl.constexpr,
    PDL: tl.constexpr,
):
    begin(PDL)
    at = tl.arange(0, PADDED_ENTRIES)
    lens = tl.load(lens_ptr + at, mask=at < entries, other=0)
    # With so many keys a part at most there are at most `extra` parts more than entries.
    most = tl.maximum(tl.cdiv(tl.sum(lens.to(tl.int64), 0), extra), MIN_KEYS).to(tl.int32)
    parts, each = _splits_of(lens, most, KEYS)
    mine = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    my_lens = tl.load(lens_ptr + mine, mask=mine < entries, other=0)
    my_parts, my_each = _splits_of(my_lens, most, KEYS)
    # The largest first: what is begun first does not end last.
    first = each[None, :] > my_each[:, None]
    first |= (each[None, :] == my_each[:, None]) & (at[None, :] < mine[:, None])
    offset = tl.sum(tl.where(first, parts[None, :], 0), 1)
    for part in range(tl.max(my_parts, 0)):
        mask = part < my_parts
        to = parts_ptr + (offset + part) * FIELDS
        tl.store(to, mine, mask=mask)
        tl.store(to + 1, part, mask=mask)
        tl.store(to + 2, my_parts, mask=mask)
        begins = part * my_each
        tl.store(to + 3, begins, mask=mask)
        tl.store(to + 4, tl.minimum(begins + my_each, my_lens), mask=mask)
    used, step = tl.sum(parts, 0), AT_ONCE * tl.num_programs(0)
    for start in range(used + tl.program_id(0) * AT_ONCE, entries + extra, step):
        unused = start + tl.arange(0, AT_ONCE)
        tl.store(parts_ptr + unused * FIELDS, -1, mask=unused < entries + extra)


def split_keys(seq_lens: torch.Tensor, *, extra: int, keys: int, least: int) -> torch.Tensor:
    """int32 [entries + extra, FIELDS] for entries of seq_lens [entries] int32 keys.

    Parts are multiples of `keys`, but for an entry's last one, and none is made of less than
    `least`. An entry's parts stand one after the other.
    """
    entries = len(seq_lens)
    parts = torch.empty((entries + extra, FIELDS.value), dtype=torch.int32, device=seq_lens.device)
    _split_keys[(triton.cdiv(entries, AT_ONCE),)](
        seq_lens,
        parts,
        entries,
        extra,
        PADDED_ENTRIES=max(SMALL_ENTRIES, triton.next_power_of_2(entries)),
        AT_ONCE=AT_ONCE,
        KEYS=keys,
        MIN_KEYS=least,
        **launch_options(seq_lens.device),
    )
    return parts


def make_kv_splits(
    seq_lens: torch.Tensor, kv_heads: int, tuning: DecodeTuning, multiprocessors: int
) -> KVSplits:
    """Return the split-KV assignment of a step, shared by all layers with the same launch
    parameters."""
    extra = int(EXTRA_PROGRAMS_PER_SM * multiprocessors) // kv_heads
    parts = split_keys(
        seq_lens,
        extra=max(1, min(MAX_EXTRA_SPLITS, extra)),
        keys=tuning.keys,
        least=tuning.min_keys,
    )
    # Launched between the two, this is also what lets a decode's programs read the division before
    # their turn: they may do so of all but the last kernel before them.
    arrivals = torch.zeros(len(seq_lens) * kv_heads, dtype=torch.int32, device=seq_lens.device)
    return KVSplits(parts, arrivals)
