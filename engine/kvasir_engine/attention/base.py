"""The interface between model code and attention kernels over paged KV.

Model code calls `attend(layer, q, k, v)`; everything it needs to know about the batch stands in
the step's `ForwardContext`, so that models stay pure functions of tokens and positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from kvasir_engine.kv.cache_spec import UNSCALED, KVCacheSpec, KVScales


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One attention layer's sizes, scale and mask, fixed at construction.

    `window` w: a query at position p sees keys p - w + 1 .. p. `softcap` c: scores become
    c * tanh(score / c) before the mask. `scale` multiplies q k^T. `sinks` [heads] adds exp(sink) to
    the denominator of a head's softmax, as a key without a value would (arXiv:2309.17453).
    """

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    # A layer's weight, which its module loads; layers with sinks launch the same kernels.
    sinks: torch.Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def cache(self) -> KVCacheSpec:
        """Layout of the layer's cache."""
        return KVCacheSpec(self.num_kv_heads, self.head_dim, self.window)


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Decodes that begin with the same physical blocks, on the device.

    An entry belongs to one group at most; a group's entries fill tiles of equal size.
    """

    tile_entries: torch.Tensor
    """[tiles, a tile's entries] int32, -1 where there is none; an empty tile is all -1."""
    tile_lens: torch.Tensor
    """[tiles] int32: leading keys that the tile's entries have in common."""
    prefix_lens: torch.Tensor
    """[entries] int32: the same by entry, 0 where it is in no group."""


@dataclass(frozen=True, slots=True)
class KVSplits:
    """Split-KV assignment on the device: which program attends to which keys."""

    parts: torch.Tensor
    """[parts, fields] int32, by `attention.triton.split_kv`."""
    arrivals: torch.Tensor
    """[entries x KV heads] int32: how many of an entry's parts have ended, 0 between layers."""


@dataclass(slots=True)
class AttentionBatch:
    """One KV group's view of the batch, on the device.

    Entries are ordered decodes first. Token t of the flattened batch belongs to entry e when
    query_start[e] <= t < query_start[e + 1].
    """

    block_table: torch.Tensor
    """[entries, max_blocks] int32; logical block i holds positions 16 i .. 16 i + 15."""
    slot_mapping: torch.Tensor
    """[tokens] int64: block * block_size + offset where each new token's K and V are written."""
    query_start: torch.Tensor
    """[entries + 1] int32."""
    seq_lens: torch.Tensor
    """[entries] int32: tokens with KV after this step, the new ones included."""
    num_decodes: int
    """The first entries, each with exactly one new token."""
    max_seq_len: int
    """CPU upper bound over entries, for launch sizes."""
    query_lens_cpu: list[int]
    """New tokens of each entry, on the CPU; of a prefill an upper bound will do."""
    seq_lens_cpu: list[int]
    """Upper bounds of seq_lens, on the CPU."""
    decode_order: torch.Tensor | None = None
    """[num_decodes] int32: decodes, the longest first, which is how a GPU's parts end together."""
    shared: SharedPrefixes | None = None
    """Prefixes that decodes may attend to together; a backend may pass them over."""
    tiles: dict[int, torch.Tensor] = field(default_factory=dict, init=False)
    """A backend's tiles of the prefills, by a tile's tokens: made once for all layers."""
    portions: list[AttentionBatch] | None = field(default=None, init=False)
    """A backend's prefills in portions, made once for all layers."""
    split_kv: bool = False
    """True when some decodes' contexts are much longer than others'."""
    kv_splits: dict[object, KVSplits] = field(default_factory=dict, init=False)
    """A backend's splits of the decodes' keys then, by how layers are launched."""


class QueryBuffer:
    """Buffer for the queries of a step's new tokens, shared by all layers in turn, so
    that graphs keep nothing of it."""

    def __init__(
        self, specs: list[AttentionSpec], tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate for steps of at most `tokens` tokens."""
        self.tokens = tokens
        width = max(spec.num_heads * spec.head_dim for spec in specs)
        self.all = torch.zeros(tokens * width, dtype=dtype, device=device)

    def queries_of(self, spec: AttentionSpec, tokens: int) -> torch.Tensor:
        """Return the first `tokens` queries of a layer, [tokens, heads, head_dim]."""
        flat = self.all[: tokens * spec.num_heads * spec.head_dim]
        return flat.view(tokens, spec.num_heads, spec.head_dim)


class AttentionBackend(Protocol):
    """Paged attention of the layers with one cache spec, on one device; caches and batch are passed
    in."""

    graph_safe: bool
    """Decodes only launch kernels, sized by the batch's `max_seq_len` at most."""

    def write_new_kv(
        self,
        cache: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        slots: torch.Tensor,
        scales: KVScales = UNSCALED,
    ) -> None:
        """Store k, v [tokens, kv_heads, head_dim] at `slots` of cache
        [2, blocks, block_size, kv_heads, head_dim], divided by `scales` where it is of float8."""
        ...

    def attend(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        out: torch.Tensor | None = None,
        scales: KVScales = UNSCALED,
    ) -> torch.Tensor:
        """Return attention of q [tokens, heads, head_dim] over the cached keys, in the same shape,
        in `out` where it is given. The numbers of a float8 cache are multiplied by `scales`."""
        ...


@dataclass(slots=True)
class ForwardContext:
    """Backends, caches and batches that the layers of one forward pass share."""

    backends: list[AttentionBackend]
    """One a layer."""
    caches: list[torch.Tensor]
    """One a layer, of the shape that the layer's CacheSpec gives it."""
    batches: list[AttentionBatch]
    """One view a KV group."""
    group_of_layer: list[int]
    queries: QueryBuffer | None = None
    kv_scales: Sequence[KVScales] = ()
    """One a layer; empty where the caches are of the model's type."""

    def scales_of(self, spec: AttentionSpec) -> KVScales:
        """Return the scales of the layer's cache."""
        return self.kv_scales[spec.layer] if self.kv_scales else UNSCALED

    def batch_of(self, spec: AttentionSpec) -> AttentionBatch:
        """Return the view of the layer's KV group."""
        return self.batches[self.group_of_layer[spec.layer]]


_current: ForwardContext | None = None


@contextmanager
def forward_context(context: ForwardContext) -> Iterator[None]:
    """Make `context` the one that `attend` uses."""
    global _current
    previous, _current = _current, context
    try:
        yield
    finally:
        _current = previous


def attend(spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Write k, v of the new tokens into the paged cache, then attend.

    q [tokens, heads, head_dim]; k, v [tokens, kv_heads, head_dim]; returns the shape of q.
    """
    context = current_context()
    slots, scales = context.batch_of(spec).slot_mapping, context.scales_of(spec)
    context.backends[spec.layer].write_new_kv(context.caches[spec.layer], k, v, slots, scales)
    return attend_cached(spec, q)


def attend_cached(spec: AttentionSpec, q: torch.Tensor) -> torch.Tensor:
    """Attend when the new keys and values are in the cache already; returns the shape of q."""
    context, layer = current_context(), spec.layer
    return context.backends[layer].attend(
        spec, q, context.caches[layer], context.batch_of(spec), scales=context.scales_of(spec)
    )


def current_context() -> ForwardContext:
    """Return the context of the forward pass that runs. Raises RuntimeError outside one."""
    if _current is None:
        raise RuntimeError("attend() was called outside forward_context().")
    return _current
