"""KV groups: layers that share a block table because they keep the same tokens."""

from __future__ import annotations

from dataclasses import dataclass

NULL_BLOCK = 0
"""Block 0 of every group is never allocated: tables point at it where nothing is kept."""


@dataclass(frozen=True, slots=True)
class KVGroupSpec:
    """Layers of one kind. `window` None keeps every token, w keeps what the last w tokens see.

    A layer with window w attends to positions p - w + 1 .. p of query position p (as HF does).
    """

    layers: tuple[int, ...]
    block_size: int
    window: int | None = None


def group_layers(windows: tuple[int | None, ...], block_size: int) -> tuple[KVGroupSpec, ...]:
    """One group for each distinct window, full attention first, from a window (or None) a layer."""
    kinds = sorted(set(windows), key=lambda w: (w is not None, w or 0))
    return tuple(
        KVGroupSpec(
            layers=tuple(i for i, w in enumerate(windows) if w == kind),
            block_size=block_size,
            window=kind,
        )
        for kind in kinds
    )
