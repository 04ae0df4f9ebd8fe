"""CUDA graphs of decode steps: one launch instead of a kernel at a time.

A graph is captured for each of a few batch sizes; a step runs in the smallest one that holds it,
padded with a row that nobody owns: its one token lies in the null block. Everything a graph reads
of a step is the list of rows: token ids, positions, slots and block tables are gathered on the
device, within the graph, from the persistent batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvasir_engine.runner.batch import StepInputs
from kvasir_engine.runner.plan import StepPlan
from kvasir_engine.runner.upload import upload

log = logging.getLogger(__name__)


def graph_sizes(most: int) -> list[int]:
    """Batch sizes worth a graph: 1, 2, 4, multiples of 8 to 256, then of 16, and `most` itself."""
    sizes = {1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)}
    return sorted({size for size in sizes if size < most} | {min(most, 512)})


@dataclass(slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    rows: torch.Tensor
    """[size] int64, read by the graph."""
    inputs: StepInputs
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replayed step leaves: both are overwritten by the next step of this size."""

    inputs: StepInputs
    hidden: torch.Tensor


class DecodeGraphs:
    """The captured graphs, all in one memory pool since only one runs at a time."""

    def __init__(
        self,
        gather: Callable[[torch.Tensor], StepInputs],
        forward: Callable[[StepInputs], torch.Tensor],
        *,
        spare_row: int,
        device: torch.device,
    ) -> None:
        """`gather` makes a decode's inputs of its rows, `forward` hidden states of these; both
        must only launch kernels. `spare_row` is a row that nobody owns."""
        self._gather = gather
        self._forward = forward
        self._spare_row = spare_row
        self._device = device
        self._graphs: dict[int, _Graph] = {}
        self._fitting: list[int] = []
        """By number of rows: the size that holds them; as long as the largest size, and one."""

    @property
    def sizes(self) -> list[int]:
        """What has been captured, in order."""
        return sorted(self._graphs)

    def capture(self, most: int) -> None:
        """Capture all sizes up to `most` rows, the largest first, whose memory serves the others.

        Out of memory ends it with what there is: larger steps then run without a graph.
        """
        pool: Any = None
        for size in reversed(graph_sizes(most)):
            try:
                captured = self._capture(size, pool)
            except torch.OutOfMemoryError:
                log.warning(
                    "out of memory while capturing the decode of %d rows: sizes %s have graphs; "
                    "lower --gpu-memory-utilization to leave room for the others.",
                    size,
                    self.sizes or "none",
                )
                break
            self._graphs[size] = captured
            pool = pool or captured.graph.pool()
        self._index()

    def run(self, plan: StepPlan) -> Replayed | None:
        """Launch the forward of `plan`; None when it is no plain decode of a captured size."""
        count = len(plan.rows)
        if plan.num_decodes != count or count >= len(self._fitting):
            return None
        graph = self._graphs[self._fitting[count]]
        rows = np.full(len(graph.rows), self._spare_row, dtype=np.int64)
        rows[:count] = plan.rows
        graph.rows.copy_(upload(rows, self._device), non_blocking=True)
        graph.graph.replay()
        inputs = graph.inputs
        real = StepInputs(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            batches=inputs.batches,
            rows=graph.rows[:count],
            num_new=inputs.num_new[:count],
            query_ends=inputs.query_ends,
        )
        return Replayed(real, graph.hidden)

    def _capture(self, size: int, pool: Any) -> _Graph:
        rows = torch.full((size,), self._spare_row, dtype=torch.int64, device=self._device)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Compiles kernels and makes handles, which a capture may not.
            self._forward(self._gather(rows))
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            inputs = self._gather(rows)
            hidden = self._forward(inputs)
        return _Graph(graph, rows, inputs, hidden)

    def _index(self) -> None:
        sizes = self.sizes
        self._fitting = [0] if sizes else []
        for size in sizes:
            self._fitting.extend([size] * (size - len(self._fitting) + 1))
