"""CUDA graphs of decode steps: one launch instead of a kernel at a time.

A graph is captured for each of a few batch sizes; a step runs in the smallest one that holds it,
padded with a row that nobody owns: its one token lies in the null block. Everything a graph reads
of a step is the list of rows: token ids, positions, slots and block tables are gathered on the
device, within the graph, from the persistent batch. A second graph of each size samples, where
nothing but the rows' own temperature and truncation matters. A third kind, captured when it is
first wanted, attends to common prefixes once (`prefix_groups.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from kvasir_engine.runner.batch import StepInputs
from kvasir_engine.runner.capturing import GraphPool, capturing
from kvasir_engine.runner.plan import StepPlan
from kvasir_engine.runner.prefix_groups import Group, PrefixTiles
from kvasir_engine.runner.uneven import contexts_differ
from kvasir_engine.runner.upload import upload

log = logging.getLogger(__name__)
Kind = Literal["plain", "shared", "uneven"]
RARER = {"shared": "common prefixes", "uneven": "contexts that differ much"}
"""How kinds that are captured when they are wanted are named in a warning."""


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
    sampling: torch.cuda.CUDAGraph | None
    tokens: torch.Tensor | None
    """[size] int32, written by `sampling`."""
    tiles: torch.Tensor | None = None
    """What `PrefixTiles.pack` makes, read by the graph."""
    uploaded: bytes = b""
    """The rows that stand in `rows`."""
    groups: list[Group] | None = None
    """The groups that stand in `tiles`."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replayed step leaves: all is overwritten by the next step of this size."""

    inputs: StepInputs
    hidden: torch.Tensor
    graph: _Graph


class DecodeGraphs:
    """The captured graphs, all in one memory pool since only one runs at a time."""

    def __init__(
        self,
        gather: Callable[[torch.Tensor], StepInputs],
        forward: Callable[[StepInputs], torch.Tensor],
        sample: Callable[[torch.Tensor, StepInputs], torch.Tensor] | None,
        *,
        spare_row: int,
        prefix_tiles: PrefixTiles,
        divides: bool,
        device: torch.device,
    ) -> None:
        """`gather` makes a decode's inputs of its rows, `forward` hidden states of these, `sample`
        tokens of both, which it appends to the rows; all must only launch kernels. `spare_row` is
        a row that nobody owns; `divides`: some layers see whole contexts, which may be divided by
        length."""
        self._gather = gather
        self._forward = forward
        self._sample = sample
        self._spare_row = spare_row
        self._prefix_tiles = prefix_tiles
        self._divides = divides
        self._device = device
        self._graphs: dict[int, _Graph] = {}
        self._rarer: dict[tuple[Kind, int], _Graph | None] = {}
        """By kind and size; None where memory did not suffice."""
        self._pool = GraphPool()
        self._fitting: list[int] = []
        """By number of rows: the size that holds them; as long as the largest size, and one."""
        self.steps = 0
        """Steps that ran in a graph."""
        self.shared_steps = 0
        """Steps that attended to common prefixes once."""
        self.uneven_steps = 0
        """Steps whose contexts were divided by length."""

    @property
    def sizes(self) -> list[int]:
        """What has been captured, in order."""
        return sorted(self._graphs)

    def capture(self, most: int) -> None:
        """Capture all sizes up to `most` rows, the largest first, whose memory serves the others.

        Out of memory ends it with what there is: larger steps then run without a graph.
        """
        for size in reversed(graph_sizes(most)):
            try:
                captured = self._capture(size, "plain")
            except torch.OutOfMemoryError:
                log.warning(
                    "out of memory while capturing the decode of %d rows: sizes %s have graphs; "
                    "lower --gpu-memory-utilization to leave room for the others.",
                    size,
                    self.sizes or "none",
                )
                break
            self._graphs[size] = captured
        self._index()

    def prepare(self, kind: Kind) -> None:
        """Compile what the largest batch of a rarer kind needs, and capture it."""
        if self.sizes:
            self._when_wanted(kind, self.sizes[-1])

    def run(self, plan: StepPlan, groups: list[Group]) -> Replayed | None:
        """Launch the forward of `plan`, attending once to what `groups` have in common; None when
        it is no plain decode of a captured size."""
        count = len(plan.rows)
        if plan.num_decodes != count or count >= len(self._fitting):
            return None
        size = self._fitting[count]
        graph = self._with_groups(size, groups)
        if graph is None and self._divides and contexts_differ(plan.starts):
            graph = self._when_wanted("uneven", size)
            self.uneven_steps += graph is not None
        graph = graph or self._graphs[size]
        self._put_rows(graph, plan.rows)
        graph.graph.replay()
        self.steps += 1
        inputs = replace(
            graph.inputs, rows=graph.rows[:count], num_new=graph.inputs.num_new[:count]
        )
        return Replayed(inputs, graph.hidden, graph)

    @staticmethod
    def sample(replayed: Replayed) -> torch.Tensor | None:
        """Launch head and sampling of a step that ran in a graph, every row of which samples a
        token: int32 [rows], appended and counted as computed; None where that was not captured."""
        graph = replayed.graph
        if graph.sampling is None or graph.tokens is None:
            return None
        graph.sampling.replay()
        return graph.tokens[: len(replayed.inputs.rows)]

    def _put_rows(self, graph: _Graph, rows: npt.NDArray[np.int32]) -> None:
        wanted = rows.tobytes()
        if wanted == graph.uploaded:
            return
        padded = np.full(len(graph.rows), self._spare_row, dtype=np.int64)
        padded[: len(rows)] = rows
        graph.rows.copy_(upload(padded, self._device), non_blocking=True)
        graph.uploaded = wanted

    def _with_groups(self, size: int, groups: list[Group]) -> _Graph | None:
        """The graph that attends to `groups` once, with them in place."""
        if not groups:
            return None
        graph = self._when_wanted("shared", size)
        if graph is None or graph.tiles is None:
            return None
        if graph.groups is not groups:
            packed = self._prefix_tiles.pack(groups, size)
            graph.tiles.copy_(upload(packed, self._device), non_blocking=True)
            graph.groups = groups
        self.shared_steps += 1
        return graph

    def _when_wanted(self, kind: Kind, size: int) -> _Graph | None:
        if (kind, size) not in self._rarer:
            try:
                self._rarer[kind, size] = self._capture(size, kind)
            except torch.OutOfMemoryError:
                log.warning("no memory for a graph of %d rows for %s.", size, RARER[kind])
                self._rarer[kind, size] = None
        return self._rarer[kind, size]

    def _capture(self, size: int, kind: Kind) -> _Graph:
        rows = torch.full((size,), self._spare_row, dtype=torch.int64, device=self._device)
        tiles = None
        if kind == "shared":
            tiles = upload(self._prefix_tiles.pack([], size), self._device)
        with capturing():
            # Compiles kernels and makes handles, which a capture may not.
            inputs = self._inputs(rows, kind, tiles)
            hidden = self._forward(inputs)
            if self._sample is not None:
                self._sample(hidden, inputs)

            def forward() -> tuple[StepInputs, torch.Tensor]:
                inputs = self._inputs(rows, kind, tiles)
                return inputs, self._forward(inputs)

            graph, (inputs, hidden) = self._pool.record(forward)
            sampling, tokens = None, None
            if self._sample is not None:
                draw = self._sample
                sampling, tokens = self._pool.record(lambda: draw(hidden, inputs))
        return _Graph(graph, rows, inputs, hidden, sampling, tokens, tiles)

    def _inputs(self, rows: torch.Tensor, kind: Kind, tiles: torch.Tensor | None) -> StepInputs:
        inputs = self._gather(rows)
        for batch in inputs.batches:
            batch.uneven = kind == "uneven"
        if tiles is not None:
            prefixes = self._prefix_tiles.unpack(tiles, len(rows))
            for batch in inputs.batches:
                batch.shared = prefixes
        return inputs

    def _index(self) -> None:
        sizes = self.sizes
        self._fitting = [0] if sizes else []
        for size in sizes:
            self._fitting.extend([size] * (size - len(self._fitting) + 1))
