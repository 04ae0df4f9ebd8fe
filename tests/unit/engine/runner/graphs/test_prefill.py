"""Which sizes are captured. That a replayed prompt equals a launched one needs a GPU: the
correctness matrix run there says so."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvasir_engine.runner.graphs.prefill import prefill_sizes


@pytest.mark.parametrize("most", [0, 16, 100, 512, 8192])
def test_sizes_are_in_order_and_bounded(most: int) -> None:
    sizes = prefill_sizes(most)
    assert sizes == sorted(set(sizes))
    assert all(size <= min(most, 1024) for size in sizes)


def test_little_is_computed_for_padding() -> None:
    sizes = prefill_sizes(8192)
    assert all(larger - size <= max(64, size // 4) for size, larger in pairwise(sizes))
