"""Layers that cache something other than keys and values: sized, allocated and scheduled as they
are, by what their CacheSpec says alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from kvasir_engine.attention.backends import make_backends
from kvasir_engine.kv.cache_spec import CacheSpec, KVCacheSpec
from kvasir_engine.kv.groups import KVGroupSpec, group_layers
from kvasir_engine.runner.kv_cache import allocate, copy_blocks
from kvasir_engine.startup.kv_sizing import bytes_per_block, context_that_fits, split_blocks

from .engine_model import EngineModel

CPU = torch.device("cpu")
BLOCK = 4


@dataclass(frozen=True)
class LatentSpec:
    """One compressed vector a token, without heads (MLA)."""

    size: int = 576
    window: None = None

    def shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        return (1, num_blocks, block_size, self.size)


@dataclass(frozen=True)
class RecurrentSpec:
    """The state after a block's last token, which only the next token reads."""

    state: tuple[int, ...] = (8, 16)
    window: int = 2

    def shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        return (1, num_blocks, *self.state)


LAYERS: list[CacheSpec] = [
    LatentSpec(),
    RecurrentSpec(),
    KVCacheSpec(2, 8, window=6),
    LatentSpec(),
    KVCacheSpec(2, 8),
]
GROUPS = (
    KVGroupSpec((0, 3), BLOCK),
    KVGroupSpec((4,), BLOCK),
    KVGroupSpec((1,), BLOCK, window=2),
    KVGroupSpec((2,), BLOCK, window=6),
)
ITEM_BYTES = 4
BLOCK_BYTES = [2 * 4 * 576 * 4, 2 * 4 * 2 * 8 * 4, 8 * 16 * 4, 2 * 4 * 2 * 8 * 4]


def blocks(budget: int) -> list[int]:
    """Blocks of each group that the budget holds."""
    sizes = [bytes_per_block(group, LAYERS, ITEM_BYTES) for group in GROUPS]
    return split_blocks(
        GROUPS, sizes, budget, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=8
    )


def test_layers_with_equal_specs_form_a_group() -> None:
    assert group_layers(LAYERS, BLOCK) == GROUPS


def test_pages_are_sized_by_what_they_hold() -> None:
    assert [bytes_per_block(group, LAYERS, ITEM_BYTES) for group in GROUPS] == BLOCK_BYTES
    latent, full, recurrent, windowed = blocks(400_000)
    # A sequence keeps every token's latent, and the states of its last tokens alone.
    assert latent == full > windowed > recurrent > 1
    assert context_that_fits(GROUPS, [9, 9, 3, 20], chunk=8) == 8
    spent = sum((n - 1) * size for n, size in zip(blocks(400_000), BLOCK_BYTES, strict=True))
    assert 300_000 < spent <= 400_000


def test_caches_have_their_specs_shapes_and_are_copied_by_block() -> None:
    caches = allocate(LAYERS, GROUPS, [5, 6, 3, 4], torch.float32, CPU)
    assert [tuple(cache.shape) for cache in caches] == [
        (1, 5, BLOCK, 576), (1, 3, 8, 16), (2, 4, BLOCK, 2, 8), (1, 5, BLOCK, 576),
        (2, 6, BLOCK, 2, 8),
    ]  # fmt: skip
    caches[1][:, 1] = 7.0
    copy_blocks([caches[1]], np.array([[1, 2]], dtype=np.int32))
    assert caches[1].sum(dim=(0, 2, 3)).tolist() == [0, 7.0 * 128, 7.0 * 128]


@pytest.mark.parametrize("budget", [800_000, 1_500_000])
def test_requests_run_over_pools_of_any_layout(
    engine_model: Callable[..., EngineModel], budget: int
) -> None:
    """The model checks that each query finds what its groups' windows say it needs: with prefix
    hits, chunked prompts and, in the smaller pool, preemption."""
    engine = engine_model(
        windows=tuple(group.window for group in group_layers(LAYERS, BLOCK)),
        num_blocks=tuple(blocks(budget)),
        block_size=BLOCK,
        rows=4,
        budget=8,
    )
    prompt = list(range(1, 23))
    engine.add(prompt, max_tokens=24)
    engine.run()
    for last in range(5):
        engine.add([*prompt, 100 + last], max_tokens=24)
    engine.run()
    assert engine.counters.prefix_hits >= 3 * 20
    assert engine.counters.chunked_prefills > 0
    assert bool(engine.counters.preemptions) == (budget == 800_000)


def test_a_layers_backend_is_chosen_by_its_spec() -> None:
    full, window = KVCacheSpec(2, 8), KVCacheSpec(2, 8, window=6)
    backends = make_backends([full, window, full], CPU)
    assert backends[0] is backends[2] is not backends[1]
    with pytest.raises(TypeError, match=r"no attention backend reads pages of LatentSpec\("):
        make_backends(LAYERS, CPU)
