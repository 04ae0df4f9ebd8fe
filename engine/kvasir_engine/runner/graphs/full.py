"""Full CUDA graphs: a decode step as one launch instead of one per kernel.

A graph is captured for each of a few batch sizes; a step runs in the smallest one that holds it,
padded with a spare row that no request owns: its one token lies in the null block. The graph reads
only the list of rows: token ids, positions, slots and block tables are gathered on the device,
within the graph, from the persistent batch. A second graph of each size samples, for steps whose
rows need nothing but temperature and truncation; where ranks share the vocabulary a third one does,
for those without truncation. Two variants are captured when first wanted: one
attends to shared prefixes once (`prefix_groups.py`), one uses split-KV by length (`split_kv.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from kvasir_engine.device.graph_capture import (
    CapturedSizes,
    GraphPool,
    capturing,
    raise_where_ranks_wait,
)
from kvasir_engine.device.upload import upload
from kvasir_engine.runner.batch import StepInputs
from kvasir_engine.runner.prefix_groups import PrefixGroup, PrefixTiles
from kvasir_engine.runner.split_kv_choice import needs_split_kv
from kvasir_engine.step_plan import StepPlan

log = logging.getLogger(__name__)
Draw: TypeAlias = Callable[[torch.Tensor, StepInputs], torch.Tensor]
Variant = Literal["plain", "shared_prefix", "split_kv"]
ON_DEMAND = {"shared_prefix": "shared prefixes", "split_kv": "contexts of very different lengths"}
"""Variants captured when first wanted, as a warning names them."""


def decode_sizes(max_rows: int) -> list[int]:
    """Return the batch sizes to capture: 1, 2, 4, multiples of 8 up to 256, then of 16, and
    `max_rows` itself, up to 512."""
    sizes = {1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)}
    return sorted({size for size in sizes if size < max_rows} | {min(max_rows, 512)})


@dataclass(frozen=True, slots=True)
class _Sampling:
    """A captured head with what chooses the tokens."""

    graph: torch.cuda.CUDAGraph
    tokens: torch.Tensor
    """[size] int32, written by `graph`."""


@dataclass(slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    rows: torch.Tensor
    """[size] int64, read by the graph."""
    inputs: StepInputs
    hidden: torch.Tensor
    sampling: list[_Sampling]
    """One for each of `FullGraphs.draws`."""
    tiles: torch.Tensor | None = None
    """Packed prefix tiles (`PrefixTiles.pack`), read by the graph."""
    uploaded: bytes = b""
    """The bytes of the row list that `rows` holds now."""
    groups: list[PrefixGroup] | None = None
    """The groups that `tiles` holds now."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Outputs of a replayed graph; the next step of this size overwrites them."""

    inputs: StepInputs
    hidden: torch.Tensor
    graph: _Graph


@dataclass(slots=True, eq=False)
class FullGraphs:
    """Full graphs of decode steps, by batch size and variant."""

    pool: GraphPool
    gather: Callable[[torch.Tensor], StepInputs]
    """Turns rows into the inputs of their decode; it and the next two only launch kernels."""
    forward: Callable[[StepInputs], torch.Tensor]
    """Turns inputs into hidden states."""
    draws: Sequence[Draw]
    """Turn hidden states and inputs into tokens, which they append to the rows."""
    padding_row: int
    """Row of no request, which fills up a graph's batch."""
    prefix_tiles: PrefixTiles
    splits_kv: bool
    """True if some layers see whole contexts, whose keys may be split by length."""
    device: torch.device
    steps: Counter[Variant] = field(default_factory=Counter)
    """Replayed steps by variant."""
    _plain: CapturedSizes[_Graph] = field(default_factory=lambda: CapturedSizes("decodes"))
    _on_demand: dict[tuple[Variant, int], _Graph | None] = field(default_factory=dict)
    """Graphs by variant and size; None where memory did not suffice."""

    def capture(self, max_rows: int) -> None:
        """Capture the plain graphs of all sizes up to `max_rows`."""
        sizes = decode_sizes(max_rows)
        self._plain.capture(self.pool, lambda: sizes, lambda size: self._capture(size, "plain"))

    def capture_largest(self, variant: Variant) -> None:
        """Compile the kernels of an on-demand variant and capture its largest size."""
        if self._plain.largest:
            self._get_or_capture(variant, self._plain.largest)

    def clear(self) -> None:
        """Free all graphs."""
        self._plain.clear()
        self._on_demand.clear()

    def run(self, plan: StepPlan, groups: list[PrefixGroup]) -> Replayed | None:
        """Launch the forward pass of `plan`, attending once to the prefixes that `groups` share;
        None when the step is not a decode of a captured size."""
        count = len(plan.rows)
        plain = self._plain.smallest_holding(count) if plan.num_decodes == count else None
        if plain is None:
            return None
        variant, graph = self._choose(plain, plan, groups)
        self._put_rows(graph, plan.rows)
        graph.graph.replay()
        self.steps[variant] += 1
        inputs = replace(
            graph.inputs, rows=graph.rows[:count], num_new=graph.inputs.num_new[:count]
        )
        return Replayed(inputs, graph.hidden, graph)

    def _choose(
        self, plain: _Graph, plan: StepPlan, groups: list[PrefixGroup]
    ) -> tuple[Variant, _Graph]:
        """Return the variant that suits the step, and its graph."""
        size = len(plain.rows)
        if groups and (graph := self._with_groups(size, groups)):
            return "shared_prefix", graph
        splits = self.splits_kv and needs_split_kv(plan.starts)
        if splits and (graph := self._get_or_capture("split_kv", size)):
            return "split_kv", graph
        return "plain", plain

    @staticmethod
    def sample(replayed: Replayed, draw: int = 0) -> torch.Tensor | None:
        """Launch head and sampling of a replayed step whose rows all sample, by the draw of this
        number: int32 [rows] tokens, appended and counted as computed; None where sampling was not
        captured."""
        if not replayed.graph.sampling:
            return None
        sampling = replayed.graph.sampling[draw]
        sampling.graph.replay()
        return sampling.tokens[: len(replayed.inputs.rows)]

    def _put_rows(self, graph: _Graph, rows: npt.NDArray[np.int32]) -> None:
        wanted = rows.tobytes()
        if wanted == graph.uploaded:
            return
        padded = np.full(len(graph.rows), self.padding_row, dtype=np.int64)
        padded[: len(rows)] = rows
        graph.rows.copy_(upload(padded, self.device), non_blocking=True)
        graph.uploaded = wanted

    def _with_groups(self, size: int, groups: list[PrefixGroup]) -> _Graph | None:
        """Return the shared-prefix graph of `size` with `groups` uploaded, None without memory."""
        graph = self._get_or_capture("shared_prefix", size)
        if graph is None or graph.tiles is None:
            return None
        if graph.groups is not groups:
            packed = self.prefix_tiles.pack(groups, size)
            graph.tiles.copy_(upload(packed, self.device), non_blocking=True)
            graph.groups = groups
        return graph

    def _get_or_capture(self, variant: Variant, size: int) -> _Graph | None:
        if (variant, size) not in self._on_demand:
            graph = self._capture_if_room(variant, size)
            if graph is None:
                log.warning(
                    "no memory for a CUDA graph of %d rows for %s.", size, ON_DEMAND[variant]
                )
            self._on_demand[variant, size] = graph
        return self._on_demand[variant, size]

    def _capture_if_room(self, variant: Variant, size: int) -> _Graph | None:
        try:
            return self._capture(size, variant) if self.pool.has_room() else None
        except torch.OutOfMemoryError:
            raise_where_ranks_wait()
            return None

    def _capture(self, size: int, variant: Variant) -> _Graph:
        rows = torch.full((size,), self.padding_row, dtype=torch.int64, device=self.device)
        tiles = None
        if variant == "shared_prefix":
            tiles = upload(self.prefix_tiles.pack([], size), self.device)
        with capturing():
            # Warm-up: compiles kernels and creates handles, which a capture may not.
            inputs = self._inputs(rows, variant, tiles)
            hidden = self.forward(inputs)
            for draw in self.draws:
                draw(hidden, inputs)

            def forward() -> tuple[StepInputs, torch.Tensor]:
                inputs = self._inputs(rows, variant, tiles)
                return inputs, self.forward(inputs)

            graph, (inputs, hidden) = self.pool.record(forward)
            records = [self.pool.record(partial(draw, hidden, inputs)) for draw in self.draws]
        sampling = [_Sampling(*record) for record in records]
        return _Graph(graph, rows, inputs, hidden, sampling, tiles)

    def _inputs(
        self, rows: torch.Tensor, variant: Variant, tiles: torch.Tensor | None
    ) -> StepInputs:
        inputs = self.gather(rows)
        for batch in inputs.batches:
            batch.split_kv = variant == "split_kv"
        if tiles is not None:
            prefixes = self.prefix_tiles.unpack(tiles, len(rows))
            for batch in inputs.batches:
                batch.shared = prefixes
        return inputs
