"""What graphs of all kinds share. CUDA's own are recorded on a GPU only: a stand-in says in which
order it was asked for what."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from kvasir_engine.device import graph_capture
from kvasir_engine.device.collectives import TensorParallel
from kvasir_engine.device.graph_capture import CapturedSizes, GraphPool


class Graph:
    """Stand for torch.cuda.CUDAGraph."""

    made: list[Graph] = []

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.made.append(self)

    def capture_begin(self, **options: Any) -> None:
        self.calls.append(options)

    def capture_end(self) -> None:
        self.calls.append("end")

    def pool(self) -> str:
        return f"pool {self.made.index(self)}"


@pytest.fixture
def graphs(monkeypatch) -> list[Graph]:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(Graph, "made", [])
    return Graph.made


class TestGraphPool:
    def test_all_graphs_are_in_the_first_ones_memory(self, graphs) -> None:
        pool = GraphPool()
        found = [pool.record(lambda n=n: n) for n in range(3)]
        assert found == [(graph, n) for n, graph in enumerate(graphs)]
        begun = [graph.calls[0] for graph in graphs]
        assert [each["pool"] for each in begun] == [None, "pool 0", "pool 0"]
        assert {each["capture_error_mode"] for each in begun} == {"thread_local"}

    def test_a_capture_that_fails_is_ended(self, graphs) -> None:
        pool = GraphPool()
        with pytest.raises(ZeroDivisionError):
            pool.record(lambda: 1 / 0)
        assert graphs[0].calls[-1] == "end"
        pool.record(int)
        assert graphs[1].calls[0]["pool"] is None


@pytest.fixture
def free(monkeypatch) -> list[int]:
    """Bytes free, and after them those free once torch has given back what it kept."""
    sizes = [100, 100]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (sizes[0], 1000))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: sizes.pop(0))
    return sizes


class TestRoom:
    @pytest.mark.parametrize(("kept", "before", "after"), [(0, 0, 0), (50, 50, 50), (50, 9, 50)])
    def test_there_is_room(self, free: list[int], kept: int, before: int, after: int) -> None:
        free[:] = [before, after]
        pool = GraphPool()
        pool.keep_free = kept
        assert pool.has_room()

    def test_the_fullest_gpu_of_all_ranks_decides(self, free: list[int], monkeypatch) -> None:
        asked = []

        def smallest(numbers: list[int]) -> list[int]:
            asked.append(numbers)
            return [0]

        monkeypatch.setattr(graph_capture, "all_reduce_min", smallest)
        pool = GraphPool()
        pool.keep_free = 50
        assert not pool.has_room()
        assert asked == [[1]]

    def test_graphs_leave_what_is_to_stay_free(self, free: list[int], caplog) -> None:
        pool = GraphPool()
        pool.keep_free = 80
        captured = CapturedSizes[str]("short steps")

        def capture(size: int) -> str:
            free[:] = [free[0] - 15, free[0] - 15]
            return str(size)

        captured.capture(pool, lambda: [16, 64, 128], capture)
        assert (captured.smallest_holding(1), free[0]) == ("64", 70)
        assert "short steps: sizes [64, 128] have them" in caplog.text


class TestCapturedSizes:
    @pytest.fixture
    def captured(self) -> CapturedSizes[str]:
        return CapturedSizes("short steps")

    @pytest.mark.parametrize(
        ("tokens", "found"), [(1, "a"), (16, "a"), (17, "b"), (64, "b"), (65, None)]
    )
    def test_the_smallest_that_holds_a_step(self, captured, tokens: int, found: str | None) -> None:
        captured.capture(GraphPool(), lambda: [16, 64], {16: "a", 64: "b"}.__getitem__)
        assert captured.smallest_holding(tokens) == found
        assert captured.largest == 64

    def test_none_is_found_once_all_are_freed(self, captured) -> None:
        captured.capture(GraphPool(), lambda: [16], str)
        captured.clear()
        assert captured.smallest_holding(1) is None

    def test_without_any_none_is_found(self, captured) -> None:
        assert captured.smallest_holding(1) is None
        assert captured.largest == 0

    def test_out_of_memory_leaves_what_there_is(self, captured, caplog) -> None:
        def capture(size: int) -> str:
            if size < 64:
                raise torch.OutOfMemoryError
            return str(size)

        with caplog.at_level(logging.WARNING):
            captured.capture(GraphPool(), lambda: [16, 64, 128], capture)
        assert "short steps: sizes [64, 128] have them" in caplog.text
        assert "--max-num-batched-tokens" in caplog.text
        assert captured.smallest_holding(16) == "64"

    def test_beside_other_ranks_it_is_raised(self, captured, monkeypatch) -> None:
        """They have captured the size, or wait for this rank within it."""
        monkeypatch.setattr(graph_capture, "tensor_parallel", lambda: TensorParallel(0, 2))

        def capture(size: int) -> str:
            raise torch.OutOfMemoryError

        with pytest.raises(torch.OutOfMemoryError):
            captured.capture(GraphPool(), lambda: [16], capture)

    def test_so_does_that_of_measuring(self, captured, caplog) -> None:
        def sizes() -> list[int]:
            raise torch.OutOfMemoryError

        with caplog.at_level(logging.WARNING):
            captured.capture(GraphPool(), sizes, str)
        assert "sizes none have them" in caplog.text
        assert captured.smallest_holding(1) is None
