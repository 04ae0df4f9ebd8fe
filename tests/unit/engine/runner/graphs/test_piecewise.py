"""Which sizes are captured. That steps in pieces equal launched ones needs a GPU: the correctness
matrix run there says so."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvasir_engine.runner.graphs.piecewise import piecewise_sizes


@pytest.mark.parametrize("most", [0, 16, 100, 512, 2048, 8192])
def test_sizes_are_in_order_and_bounded(most: int) -> None:
    sizes = piecewise_sizes(most)
    assert sizes == sorted(set(sizes))
    assert all(size <= most for size in sizes)


def test_at_most_an_eighth_is_padding_of_large_steps() -> None:
    sizes = [size for size in piecewise_sizes(8192) if size >= 512]
    assert all(larger - size <= size // 8 for size, larger in pairwise(sizes))
