"""Cache specs: what one page of a layer's cache holds, and for how long it is kept. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class CacheSpec(Protocol):
    """Layout of one layer's cache; a page is what one block holds for one layer.

    Each attention layer of a model yields one, and layers with equal specs form a KV group, which
    shares a block table. Sizing and allocation ask the spec for `shape`, `attention.backends` picks
    the kernels by its class; scheduler and pools know of a group its index, its number of blocks
    and its `window` alone. A new kind of layer is therefore a class here and a backend. A latent
    layer (MLA) keeps one vector a token, without heads, in `(1, blocks, block_size, size)`. A
    recurrent layer keeps in a page the state after the block's last computed token,
    `(1, blocks, *state)`; computing a token reads the state after the one before, so its window
    is 2.
    """

    @property
    def window(self) -> int | None:
        """Tokens, the query's own included, that a query needs; None = all before it."""
        ...

    def shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return the shape of a layer's cache, whose second dimension is the blocks."""
        ...


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Keys and values by head, of all tokens or of those in a sliding window."""

    num_kv_heads: int
    head_dim: int
    window: int | None = None

    def shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return (2, blocks, block_size, kv_heads, head_dim): keys, then values."""
        return (2, num_blocks, block_size, self.num_kv_heads, self.head_dim)


class KVScales(NamedTuple):
    """Factors of the numbers in a layer's cache; those of a cache of the model's type are 1."""

    key: float = 1.0
    value: float = 1.0


UNSCALED = KVScales()


def page_bytes(spec: CacheSpec, block_size: int, item_bytes: int) -> int:
    """Return the bytes of one page, of numbers of `item_bytes` each."""
    return math.prod(spec.shape(1, block_size)) * item_bytes
