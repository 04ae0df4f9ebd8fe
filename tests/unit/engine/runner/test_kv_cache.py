"""The cache's tensors and copies between blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvasir.models.fit.devices import cpu
from kvasir_engine.kv.cache_spec import KVCacheSpec
from kvasir_engine.kv.groups import group_layers
from kvasir_engine.runner.kv_cache import allocate, copy_blocks

CPU = torch.device("cpu")
SPEC = KVCacheSpec(num_kv_heads=2, head_dim=8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_layer_has_its_groups_blocks_zeroed(dtype: torch.dtype) -> None:
    layers = [SPEC, replace(SPEC, window=32), SPEC]
    groups = group_layers(layers, 16)
    caches = allocate(layers, groups, [5, 3], dtype, CPU)
    assert [tuple(c.shape) for c in caches] == [(2, n, 16, 2, 8) for n in (5, 3, 5)]
    assert all(c.dtype is dtype and not c.any() for c in caches)


def test_copies_read_every_source_before_any_write() -> None:
    (cache,) = allocate([SPEC], group_layers([SPEC], 16), [4], torch.float32, CPU)
    for block in range(4):
        cache[:, block] = block
    copy_blocks([cache], np.array([[1, 2], [2, 3], [3, 1]], dtype=np.int32))
    assert [cache[0, block, 0, 0, 0].item() for block in range(4)] == [0, 3, 1, 2]


def test_no_pairs_copy_nothing() -> None:
    (cache,) = allocate([SPEC], group_layers([SPEC], 16), [2], torch.float32, CPU)
    copy_blocks([cache], np.empty((0, 2), dtype=np.int32))
    assert not cache.any()


def test_more_than_the_machine_has_is_refused_before_it_is_used() -> None:
    """Each layer's pages alone could be promised."""
    layers = [SPEC] * 8
    blocks = cpu().memory_bytes // (2 * 16 * 2 * 8 * 4) // 8 + 1
    with pytest.raises(MemoryError):
        allocate(layers, group_layers(layers, 16), [blocks], torch.float32, CPU)
