"""Sizes that are timed first."""

from __future__ import annotations

from kvasir_engine.runner.graphs.full import decode_sizes
from kvasir_engine.startup.gemm_tuning import MIXED_STEP_TOKENS, spread


def test_few_sizes_stand_for_all() -> None:
    sizes = [size for size in decode_sizes(256) if size >= 17] + list(MIXED_STEP_TOKENS)
    first = spread(sizes)
    assert first[0] == max(sizes)
    assert len(first) <= 16 < len(sizes) / 2
    # Each is served by one at most half an octave above it.
    assert all(min(each for each in first if each >= size) <= 1.5 * size for size in sizes)


def test_one_size_is_its_own() -> None:
    assert spread([64]) == [64]
    assert spread([]) == []
