"""KV groups: layers that share a block table because they keep the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir_engine.kv.cache_spec import CacheSpec

NULL_BLOCK = 0
"""Block 0 of every group is never allocated: tables point at it where nothing is kept."""


@dataclass(frozen=True, slots=True)
class KVGroupSpec:
    """Layers with one cache spec, of which scheduler and pools know the window alone.

    `window` None keeps every token; w keeps what the last w tokens see: a layer with window w
    attends to positions p - w + 1 .. p of query position p (as HF does).
    """

    layers: tuple[int, ...]
    block_size: int
    window: int | None = None
    dtype: str = ""
    """Type of its keys and values as --kv-cache-dtype resolves; "" = the model's, not said."""


def group_layers(
    specs: Sequence[CacheSpec], block_size: int, dtype: str = ""
) -> tuple[KVGroupSpec, ...]:
    """Return one group for each distinct spec of `specs`, one a layer: those without a window
    first, then by window."""
    kinds = sorted(dict.fromkeys(specs), key=lambda kind: kind.window or 0)
    return tuple(
        KVGroupSpec(
            layers=tuple(i for i, spec in enumerate(specs) if spec == kind),
            block_size=block_size,
            window=kind.window,
            dtype=dtype,
        )
        for kind in kinds
    )
