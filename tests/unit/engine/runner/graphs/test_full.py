"""Which sizes and kinds are captured. That a replayed decode equals a launched one needs a GPU: the
correctness matrix run there says so. Here a stand-in for CUDA's graphs tells which one was played.
"""

from __future__ import annotations

import contextlib
import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kvasir_engine.attention.base import AttentionBatch
from kvasir_engine.device.graph_capture import GraphPool
from kvasir_engine.runner.batch import StepInputs
from kvasir_engine.runner.graphs import full
from kvasir_engine.runner.graphs.full import FullGraphs, decode_sizes
from kvasir_engine.runner.prefix_groups import PrefixTiles

CPU = torch.device("cpu")


def test_sizes_are_dense_where_batches_are_small() -> None:
    assert decode_sizes(24) == [1, 2, 4, 8, 16, 24]
    assert decode_sizes(256)[-3:] == [240, 248, 256]
    assert decode_sizes(300)[-3:] == [272, 288, 300]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 100, 256, 511, 512])
def test_the_largest_batch_has_a_graph(most: int) -> None:
    sizes = decode_sizes(most)
    assert sizes[-1] == most
    assert sizes == sorted(set(sizes))


def test_no_graph_is_larger_than_512_rows() -> None:
    assert decode_sizes(1024)[-1] == 512


class Graph:
    """Stand for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.replays = 0

    def capture_begin(self, **_: Any) -> None:
        pass

    def capture_end(self) -> None:
        pass

    def pool(self) -> str:
        return "pool"

    def replay(self) -> None:
        self.replays += 1


def gather(rows: torch.Tensor) -> StepInputs:
    count = len(rows)
    ones = torch.ones(count, dtype=torch.int32)
    batch = AttentionBatch(
        block_table=ones[:, None],
        slot_mapping=rows,
        query_start=torch.arange(count + 1, dtype=torch.int32),
        seq_lens=ones,
        num_decodes=count,
        max_seq_len=9000,
        query_lens_cpu=[1] * count,
        seq_lens_cpu=[9000] * count,
    )
    return StepInputs(rows, rows, [batch], rows, ones, rows)


def plan(starts: list[int]) -> Any:
    count = len(starts)
    return SimpleNamespace(
        rows=np.arange(count, dtype=np.int32),
        starts=np.array(starts, dtype=np.int32),
        num_decodes=count,
    )


class TestKinds:
    """`seen` are (rows, whether divided by length) of the forwards that were recorded."""

    @pytest.fixture
    def seen(self) -> list[tuple[int, bool]]:
        return []

    @pytest.fixture
    def graphs(self, monkeypatch, seen) -> FullGraphs:
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(full, "capturing", contextlib.nullcontext)

        def forward(inputs: StepInputs) -> torch.Tensor:
            seen.append((len(inputs.rows), inputs.batches[0].split_kv))
            return torch.zeros(len(inputs.rows), 1)

        made = FullGraphs(
            GraphPool(),
            gather,
            forward,
            [],
            padding_row=8,
            prefix_tiles=PrefixTiles(16, 32),
            splits_kv=True,
            device=CPU,
        )
        made.capture(8)
        seen.clear()
        return made

    def test_freed_graphs_are_not_replayed(self, graphs) -> None:
        graphs.clear()
        assert graphs.run(plan([1000]), []) is None

    def test_contexts_that_differ_are_divided_by_a_graph_of_their_own(self, graphs, seen) -> None:
        even = graphs.run(plan([1000] * 5), [])
        split_kv = graphs.run(plan([64_000] + [1000] * 4), [])
        again = graphs.run(plan([1000] * 4 + [65_000]), [])
        assert even is not None
        assert split_kv is not None
        assert again is not None
        # Warmed up and recorded, when it was first wanted.
        assert seen == [(8, True)] * 2
        assert again.graph is split_kv.graph is not even.graph
        assert (even.graph.graph.replays, split_kv.graph.graph.replays) == (1, 2)
        assert graphs.steps == {"plain": 1, "split_kv": 2}

    def test_where_all_layers_have_windows_contexts_do_not_matter(
        self, graphs, seen, monkeypatch
    ) -> None:
        monkeypatch.setattr(graphs, "splits_kv", False)
        assert graphs.run(plan([64_000] + [1000] * 4), []) is not None
        assert (seen, graphs.steps["split_kv"]) == ([], 0)

    def test_the_largest_is_captured_ahead(self, graphs, seen) -> None:
        graphs.capture_largest("split_kv")
        assert seen == [(8, True)] * 2
        assert graphs.run(plan([64_000] + [1000] * 6), []) is not None
        assert len(seen) == 2

    def test_without_memory_for_it_they_run_as_others_do(self, graphs, monkeypatch, caplog) -> None:
        def no_memory(rows: torch.Tensor) -> StepInputs:
            raise torch.OutOfMemoryError

        monkeypatch.setattr(graphs, "gather", no_memory)
        with caplog.at_level(logging.WARNING):
            found = [graphs.run(plan([64_000] + [1000] * 6), []) for _ in range(2)]
        assert found[0] is not None
        assert found[1] is not None
        assert found[0].graph is found[1].graph
        assert graphs.steps == {"plain": 2}
        (record,) = caplog.records
        assert "graph of 8 rows for contexts of very different lengths" in record.message
