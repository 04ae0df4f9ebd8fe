"""The KV cache's tensors, and copies between their blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from kvasir.models.fit.devices import cpu
from kvasir_engine.attention.base import AttentionSpec
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.step_plan import Int32Array


def allocate(
    layers: Sequence[AttentionSpec],
    groups: Sequence[KVGroupSpec],
    num_blocks: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor]:
    """A zeroed cache [2, blocks, block_size, kv_heads, head_dim] for each layer.

    Zeroed, so that masked positions of never-written slots hold finite numbers. Raises MemoryError,
    on a GPU torch's, when there is less memory.
    """
    blocks_of_layer = {
        layer: (count, spec.block_size)
        for spec, count in zip(groups, num_blocks, strict=True)
        for layer in spec.layers
    }
    shapes = [
        (2, *blocks_of_layer[i], spec.num_kv_heads, spec.head_dim) for i, spec in enumerate(layers)
    ]
    if device.type == "cpu" and sum(map(math.prod, shapes)) * dtype.itemsize > cpu().memory_bytes:
        # Its pages would be given out, until they are used.
        raise MemoryError
    return [_zeros(shape, dtype, device) for shape in shapes]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros are pages the kernel gives out on first use; torch's are written at once.
    pages = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(pages).view(dtype).view(shape)


def copy_blocks(caches: Sequence[torch.Tensor], pairs: Int32Array) -> None:
    """cache[:, destination] = cache[:, source] for every pair, in every cache."""
    if not len(pairs):
        return
    index = torch.from_numpy(pairs.astype("int64")).to(caches[0].device, non_blocking=True)
    for cache in caches:
        cache[:, index[:, 1]] = cache[:, index[:, 0]]
