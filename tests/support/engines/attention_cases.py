"""Paged batches and attention written out query by query in float64, for every backend."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import torch

from kvasir_engine.attention.base import AttentionBackend, AttentionBatch, AttentionSpec
from kvasir_engine.device.float8 import FP8
from kvasir_engine.kv.cache_spec import KVScales

BLOCK = 4


DECODES = [1, 30, 4, 5, 17, 64]


PREFILLS = [(7, 7), (3, 40), (33, 33)]
"""(new tokens, length after them)."""


def make_spec(heads: int = 4, kv_heads: int = 2, head_dim: int = 8, **fields: Any) -> AttentionSpec:
    return AttentionSpec(0, heads, kv_heads, head_dim, 0.3, **fields)


def make_batch(
    decodes: list[int], prefills: list[tuple[int, int]], slack: int = 0, block: int = BLOCK
) -> tuple[AttentionBatch, int]:
    """Entries over shuffled blocks of one pool, and the pool's size; the CPU's lengths are `slack`
    above the truth."""
    lengths = decodes + [length for _, length in prefills]
    new = [1] * len(decodes) + [n for n, _ in prefills]
    width = -(-(max(lengths) + slack) // block)
    pool = list(range(1, 1 + width * len(lengths)))
    random.Random(1).shuffle(pool)
    table = torch.tensor(pool, dtype=torch.int32).view(len(lengths), width)
    slots = [
        int(table[entry, position // block]) * block + position % block
        for entry, (n, length) in enumerate(zip(new, lengths, strict=True))
        for position in range(length - n, length)
    ]
    batch = AttentionBatch(
        block_table=table,
        slot_mapping=torch.tensor(slots),
        query_start=torch.tensor([0, *new]).cumsum(0).int(),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        num_decodes=len(decodes),
        max_seq_len=max(lengths) + slack,
        query_lens_cpu=new,
        seq_lens_cpu=[length + slack for length in lengths],
    )
    return batch, len(pool) + 1


def written_out(
    spec: AttentionSpec, q: torch.Tensor, cache: torch.Tensor, batch: AttentionBatch
) -> torch.Tensor:
    """softmax(cap(scale q k), sink) v over the visible keys, one query and head at a time."""
    keys, values = cache.flatten(1, 2).double()
    block, out, token = cache.shape[2], [], 0
    for entry, n in enumerate(batch.query_lens_cpu):
        length = int(batch.seq_lens[entry])
        for position in range(length - n, length):
            first = 0 if spec.window is None else max(0, position - spec.window + 1)
            where = torch.arange(first, position + 1)
            slots = batch.block_table[entry, where // block].long() * block + where % block
            for head in range(spec.num_heads):
                kv_head = head * spec.num_kv_heads // spec.num_heads
                scores = keys[slots, kv_head] @ q[token, head].double() * spec.scale
                if spec.softcap is not None:
                    scores = spec.softcap * torch.tanh(scores / spec.softcap)
                if spec.sinks is not None:
                    scores = torch.cat((scores, spec.sinks[head : head + 1].double()))
                out.append(scores.softmax(0)[: len(slots)] @ values[slots, kv_head])
            token += 1
    return torch.stack(out).view(q.shape)


def check(
    spec: AttentionSpec,
    backend: AttentionBackend,
    *,
    decodes: list[int] = DECODES,
    prefills: list[tuple[int, int]] = PREFILLS,
    slack: int = 0,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
    poisoned: bool = False,
    block: int = BLOCK,
    split_kv: bool = False,
    scales: KVScales | None = None,
) -> None:
    """`scales`: the cache is of float8."""
    batch, blocks = make_batch(decodes, prefills, slack, block)
    batch.split_kv = split_kv
    torch.manual_seed(0)
    cache = torch.randn(2, blocks, block, spec.num_kv_heads, spec.head_dim).to(dtype)
    if poisoned:
        poison(cache, batch)
    q = torch.randn(sum(batch.query_lens_cpu), spec.num_heads, spec.head_dim).to(dtype)
    if scales is None:
        got = backend.attend(spec, q, cache, batch)
    else:
        stored = cache.to(FP8)
        got = backend.attend(spec, q, stored, batch, scales=scales)
        cache = stored.double() * torch.tensor(scales).view(2, 1, 1, 1, 1)
    assert got.dtype == dtype
    want = written_out(spec, q, cache, batch)
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


def poison(cache: torch.Tensor, batch: AttentionBatch) -> None:
    """NaN wherever no entry has a key."""
    block = cache.shape[2]
    used = torch.zeros(cache.shape[1] * block, dtype=torch.bool)
    for entry, length in enumerate(batch.seq_lens.tolist()):
        where = torch.arange(length)
        used[batch.block_table[entry, where // block].long() * block + where % block] = True
    cache.flatten(1, 2)[:, ~used] = float("nan")


def move(batch: AttentionBatch, device: torch.device) -> AttentionBatch:
    """The batch on another device."""
    tensors = {
        each.name: value.to(device)
        for each in fields(batch)
        if isinstance(value := getattr(batch, each.name), torch.Tensor)
    }
    return replace(batch, **tensors)
