"""The KV cache's tensors, and copies between their blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from kvasir.models.fit.devices import cpu
from kvasir_engine.kv.cache_spec import CacheSpec
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.step_plan import Int32Array


def allocate(
    specs: Sequence[CacheSpec],
    groups: Sequence[KVGroupSpec],
    num_blocks: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor]:
    """Return a zeroed cache for each layer, of its spec's shape.

    Zeroed, so that masked positions of never-written slots hold finite numbers. Raises MemoryError,
    on a GPU torch's, when there is less memory.
    """
    blocks_of_layer = {
        layer: (count, group.block_size)
        for group, count in zip(groups, num_blocks, strict=True)
        for layer in group.layers
    }
    shapes = [spec.shape(*blocks_of_layer[layer]) for layer, spec in enumerate(specs)]
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
    """Assign cache[:, destination] = cache[:, source] for every pair, in every cache."""
    if not len(pairs):
        return
    index = torch.from_numpy(pairs.astype("int64")).to(caches[0].device, non_blocking=True)
    for cache in caches:
        # torch copies float8 by index on some devices alone.
        stored = cache.view(torch.uint8) if cache.itemsize == 1 else cache
        stored[:, index[:, 1]] = stored[:, index[:, 0]]
