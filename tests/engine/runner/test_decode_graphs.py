"""Which sizes are captured. That a replayed decode equals a launched one needs a GPU: the
correctness matrix run there says so."""

from __future__ import annotations

import pytest

from kvasir_engine.runner.decode_graphs import graph_sizes


def test_sizes_are_dense_where_batches_are_small() -> None:
    assert graph_sizes(24) == [1, 2, 4, 8, 16, 24]
    assert graph_sizes(256)[-3:] == [240, 248, 256]
    assert graph_sizes(300)[-3:] == [272, 288, 300]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 100, 256, 511, 512])
def test_the_largest_batch_has_a_graph(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes[-1] == most
    assert sizes == sorted(set(sizes))


def test_no_graph_is_larger_than_512_rows() -> None:
    assert graph_sizes(1024)[-1] == 512
