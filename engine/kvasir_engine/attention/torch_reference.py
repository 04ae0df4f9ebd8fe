"""Paged attention in plain PyTorch: the CPU's backend, and the judge of every faster one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from kvasir_engine.attention.base import AttentionBatch, AttentionSpec
from kvasir_engine.device.float8 import FP8, FP8_MAX
from kvasir_engine.device.upload import upload
from kvasir_engine.kv.cache_spec import UNSCALED, KVScales

MAX_SCORE_BYTES = 64 * 2**20
"""Largest score matrix (heads x queries x keys, fp32) of one prefill chunk."""
_MAX_CHUNK = 512
"""Queries of a prefill chunk: keys after a chunk's last query are not computed."""


@dataclass(frozen=True, slots=True)
class GatherLimits:
    """Limits of one gather of decodes: bytes of keys and values copied, and lost to padding."""

    gathered: int
    padding: int


CPU_LIMITS = GatherLimits(gathered=2 * 2**20, padding=256 * 2**10)
"""A gather stays in cache and below malloc's mmap threshold, past which every page faults anew."""
CUDA_LIMITS = GatherLimits(gathered=512 * 2**20, padding=32 * 2**20)
"""Few launches: padding costs less than a kernel's launch until it is large."""


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decode entries that are gathered at once: the same for all layers of a KV group."""

    entries: torch.Tensor
    """[rows] int64, which are the flattened batch's tokens too."""
    blocks: torch.Tensor
    """[rows * blocks] int32: physical blocks, padded."""
    mask: torch.Tensor
    """[rows, 1, 1, keys], 0 or -inf."""


class TorchAttention:
    """The reference backend, for CPU and CUDA.

    What it works out of a batch's decodes in the first layer is kept for the others: a batch must
    not be changed once it has been attended to.
    """

    graph_safe = False

    def __init__(self, device: torch.device) -> None:
        self.limits = CPU_LIMITS if device.type == "cpu" else CUDA_LIMITS
        self._groups: tuple[AttentionBatch, list[_DecodeGroup]] | None = None

    def write_new_kv(
        self,
        cache: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        slots: torch.Tensor,
        scales: KVScales = UNSCALED,
    ) -> None:
        """AttentionBackend.write_new_kv."""
        flat = cache.flatten(1, 2)
        for part, new, scale in zip(flat, (k, v), scales, strict=True):
            if cache.dtype == FP8:
                quantized = (new.float() / scale).clamp_(-FP8_MAX, FP8_MAX).to(FP8)
                # torch copies float8 by index on some devices alone.
                part.view(torch.uint8).index_copy_(0, slots, quantized.view(torch.uint8))
            else:
                part.index_copy_(0, slots, new)

    def attend(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        out: torch.Tensor | None = None,
        scales: KVScales = UNSCALED,
    ) -> torch.Tensor:
        """AttentionBackend.attend."""
        if out is None:
            out = torch.empty_like(q)
        for group in self._decode_groups(spec, q.dtype, cache, batch):
            _decode(spec, q, cache, group, out, scales)
        starts = accumulate(batch.query_lens_cpu, initial=0)
        for entry, (start, length) in enumerate(zip(starts, batch.query_lens_cpu, strict=False)):
            if entry >= batch.num_decodes:
                _prefill(spec, q, cache, batch, entry, start, length, out, scales)
        return out

    def _decode_groups(
        self, spec: AttentionSpec, dtype: torch.dtype, cache: torch.Tensor, batch: AttentionBatch
    ) -> list[_DecodeGroup]:
        # The batch is kept alive here, so that no other can have its identity.
        if self._groups is None or self._groups[0] is not batch:
            groups = similar_lengths(spec, cache, batch, self.limits)
            self._groups = (
                batch,
                [_decode_group(spec, dtype, cache, batch, rows) for rows in groups],
            )
        return self._groups[1]


def similar_lengths(
    spec: AttentionSpec, cache: torch.Tensor, batch: AttentionBatch, limits: GatherLimits
) -> Iterator[list[int]]:
    """Yield the decode entries in groups of similar length, each gathered at once, longest first.

    A group ends where its copy, or the part of it that is padding, would exceed the limits.
    """
    block = cache.shape[2]
    block_bytes = 2 * block * cache.shape[3] * cache.shape[4] * cache.element_size()
    blocks = [
        _num_blocks(batch.seq_lens_cpu[e], 1, spec.window, block) for e in range(batch.num_decodes)
    ]
    group: list[int] = []
    padding = width = 0
    for entry in sorted(range(batch.num_decodes), key=blocks.__getitem__, reverse=True):
        waste = padding + (width - blocks[entry]) * block_bytes
        size = (len(group) + 1) * width * block_bytes
        if group and (waste > limits.padding or size > limits.gathered):
            yield group
            group = []
        if not group:
            width, waste = blocks[entry], 0
        group.append(entry)
        padding = waste
    if group:
        yield group


def _num_blocks(seq_len: int, queries: int, window: int | None, block: int) -> int:
    """Blocks to gather so that the last `queries` of `seq_len` positions see all they may."""
    blocks = -(-seq_len // block)
    if window is None:
        return blocks
    # The first visible key may be the last one of its block.
    return min(blocks, (window + queries - 2) // block + 2)


def _decode_group(
    spec: AttentionSpec,
    dtype: torch.dtype,
    cache: torch.Tensor,
    batch: AttentionBatch,
    rows: list[int],
) -> _DecodeGroup:
    block = cache.shape[2]
    longest = max(batch.seq_lens_cpu[e] for e in rows)
    entries = upload(np.asarray(rows, dtype=np.int64), cache.device)
    seq_lens = batch.seq_lens[entries].clamp(min=1)
    first = _first_position(seq_lens, 1, spec.window, block)
    count = _num_blocks(longest, 1, spec.window, block)
    positions = first[:, None] + torch.arange(count * block, device=cache.device)
    mask = _mask(positions, seq_lens[:, None] - 1, spec.window, dtype)
    blocks = _blocks(batch.block_table[entries], first, count, block)
    return _DecodeGroup(entries, blocks, mask[:, None, None])


def _decode(
    spec: AttentionSpec,
    q: torch.Tensor,
    cache: torch.Tensor,
    group: _DecodeGroup,
    out: torch.Tensor,
    scales: KVScales,
) -> None:
    rows = len(group.entries)
    keys, values = _gather(cache, group.blocks, rows, q.dtype, scales)
    # The queries that share a KV head stand where SDPA expects a head's sequence of queries.
    grouped = q[group.entries].view(rows, spec.num_kv_heads, -1, spec.head_dim)
    sinks = None if spec.sinks is None else spec.sinks.view(1, spec.num_kv_heads, -1, 1)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    mixed = _softmax_mix(spec, grouped, keys, values, group.mask, sinks)
    out[group.entries] = mixed.reshape(rows, spec.num_heads, spec.head_dim)


def _prefill(
    spec: AttentionSpec,
    q: torch.Tensor,
    cache: torch.Tensor,
    batch: AttentionBatch,
    entry: int,
    start: int,
    length: int,
    out: torch.Tensor,
    scales: KVScales,
) -> None:
    """Attend `length` queries from q[start], a chunk at a time, each to the keys it may see."""
    block = cache.shape[2]
    longest = batch.seq_lens_cpu[entry]
    chunk = max(1, min(_MAX_CHUNK, MAX_SCORE_BYTES // (4 * spec.num_heads * longest)))
    table = batch.block_table[entry : entry + 1]
    heads = (spec.num_kv_heads, spec.num_heads // spec.num_kv_heads)
    sinks = None if spec.sinks is None else spec.sinks.view(*heads, 1, 1)
    for done in range(0, length, chunk):
        n = min(chunk, length - done)
        after = length - done - n
        seq_len = batch.seq_lens[entry : entry + 1] - after
        first = _first_position(seq_len, n, spec.window, block)
        count = _num_blocks(longest - after, n, spec.window, block)
        blocks = _blocks(table, first, count, block)
        keys, values = _gather(cache, blocks, 1, q.dtype, scales)
        positions = first + torch.arange(count * block, device=q.device)
        last = seq_len - n + torch.arange(n, device=q.device)
        mask = _mask(positions, last[:, None], spec.window, q.dtype)
        tokens = slice(start + done, start + done + n)
        grouped = q[tokens].view(n, *heads, -1).permute(1, 2, 0, 3)
        keys, values = keys[0].transpose(0, 1)[:, None], values[0].transpose(0, 1)[:, None]
        mixed = _softmax_mix(spec, grouped, keys, values, mask, sinks)
        out[tokens] = mixed.permute(2, 0, 1, 3).flatten(1, 2)


def _first_position(
    seq_lens: torch.Tensor, queries: int, window: int | None, block: int
) -> torch.Tensor:
    """Return the start of the block with the first key the last `queries` positions may see."""
    if window is None:
        return torch.zeros_like(seq_lens)
    return (seq_lens - queries - window + 1).clamp(min=0) // block * block


def _blocks(table: torch.Tensor, first: torch.Tensor, count: int, block: int) -> torch.Tensor:
    """Physical blocks [rows * count] of tables [rows, width], from position `first` [rows] on.

    Past a table's end its last block is repeated; those positions are masked by the caller.
    """
    columns = first[:, None] // block + torch.arange(count, device=table.device)
    return table.gather(1, columns.clamp_(max=table.shape[1] - 1)).flatten()


def _gather(
    cache: torch.Tensor, blocks: torch.Tensor, rows: int, dtype: torch.dtype, scales: KVScales
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [rows, keys, kv_heads, head_dim] of physical `blocks`, equally many a row."""
    shape = (rows, -1, *cache.shape[3:])
    if cache.dtype != FP8:
        keys, values = (part.index_select(0, blocks).view(shape) for part in (cache[0], cache[1]))
        return keys, values
    stored = cache.view(torch.uint8)
    keys, values = (
        (part.index_select(0, blocks).view(FP8).float() * scale).to(dtype).view(shape)
        for part, scale in zip(stored, scales, strict=True)
    )
    return keys, values


def _mask(
    keys: torch.Tensor, queries: torch.Tensor, window: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """0 where the key at one position is seen from the query at another (broadcast), else -inf."""
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    return torch.zeros(hidden.shape, dtype=dtype, device=keys.device).masked_fill_(
        hidden, -math.inf
    )


def _softmax_mix(
    spec: AttentionSpec,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of q [a, b, queries, dim] over k, v [a, b or 1, keys, dim]; the mask is added, and
    the sinks, which broadcast to [a, b, queries, 1], take their share of the weights."""
    if spec.softcap is None and sinks is None:
        shape = (-1, q.shape[1], -1, -1)
        return scaled_dot_product_attention(
            q, k.expand(shape), v.expand(shape), attn_mask=mask, scale=spec.scale
        )
    scores = torch.matmul(q, k.mT).float() * spec.scale
    if spec.softcap is not None:
        scores = scores.div_(spec.softcap).tanh_().mul_(spec.softcap)
    scores = scores + mask
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        beside = sinks.float().expand_as(scores[..., :1])
        weights = torch.cat((scores, beside), -1).softmax(-1)[..., :-1]
    return torch.matmul(weights.to(v.dtype), v)
