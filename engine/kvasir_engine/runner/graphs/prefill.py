"""Prefill CUDA graphs: whole graphs, attention included, of steps that compute one short prompt.

A request to an idle engine waits for such a step. As piecewise graphs the device would wait at each
layer, before and after attention, for the next launch. Attention's launches depend on a step's
entries; with one entry they depend only on its number of tokens, and a step is padded to a captured
size: tiles past its last token exit at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kvasir_engine.attention.base import AttentionBatch, ForwardContext, forward_context
from kvasir_engine.device.graph_capture import CapturedSizes, GraphPool, capturing
from kvasir_engine.runner.batch import StepInputs
from kvasir_engine.runner.graphs.token_buffers import TokenBuffers


def prefill_sizes(max_tokens: int) -> list[int]:
    """Return the numbers of tokens to capture, up to `max_tokens`; beyond 1,024 the device's time
    hides the launches."""
    sizes = [16, *range(64, 513, 64), *range(640, 1025, 128)]
    return [size for size in sizes if size <= max_tokens]


@dataclass(frozen=True, slots=True)
class _PrefillGraph:
    graph: torch.cuda.CUDAGraph
    tokens: TokenBuffers
    batches: list[AttentionBatch]
    """One batch of one entry per KV group: the graph reads its tables, lengths and starts."""
    hidden: torch.Tensor


@dataclass(slots=True, eq=False)
class PrefillGraphs:
    """Prefill graphs of single prompts, by number of tokens."""

    pool: GraphPool
    model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Maps token ids and positions to hidden states within `context`."""
    context: ForwardContext
    """Its query buffer bounds the size of a step."""
    num_groups: int
    max_blocks: int
    """Most blocks of an entry."""
    device: torch.device
    steps: int = 0
    """Replayed steps."""
    _captured: CapturedSizes[_PrefillGraph] = field(
        default_factory=lambda: CapturedSizes("single prompts")
    )

    def capture(self) -> None:
        """Capture all sizes."""
        queries = self.context.queries
        if queries is None:
            return
        self._captured.capture(self.pool, lambda: prefill_sizes(queries.tokens), self._capture)

    def clear(self) -> None:
        """Free all graphs."""
        self._captured.clear()

    def run(self, inputs: StepInputs) -> torch.Tensor | None:
        """Return hidden states [>= tokens, hidden size] of a step, overwritten by the next step of
        its size; None when it is not a single prompt of a captured size."""
        if len(inputs.rows) != 1 or inputs.batches[0].num_decodes:
            return None
        found = self._captured.smallest_holding(len(inputs.token_ids))
        if found is None:
            return None
        found.tokens.copy_inputs(inputs)
        for mine, batch in zip(found.batches, inputs.batches, strict=True):
            mine.block_table[:, : batch.block_table.shape[1]].copy_(batch.block_table)
            mine.query_start.copy_(batch.query_start)
            mine.seq_lens.copy_(batch.seq_lens)
        found.graph.replay()
        self.steps += 1
        return found.hidden

    def _capture(self, size: int) -> _PrefillGraph:
        tokens = TokenBuffers.of_size(size, self.num_groups, self.device)
        batches = [self._batch(size, slots) for slots in tokens.slots]

        def forward() -> torch.Tensor:
            return self.model(tokens.token_ids, tokens.positions)

        with capturing(), forward_context(replace(self.context, batches=batches)):
            # Warm-up: compiles kernels, creates handles and divides the prompt into tiles, which a
            # capture may not.
            forward()
            graph, hidden = self.pool.record(forward)
        return _PrefillGraph(graph, tokens, batches, hidden)

    def _batch(self, size: int, slots: torch.Tensor) -> AttentionBatch:
        """Return a prompt of one token in the null block, launched as one of `size`."""
        like: dict[str, Any] = {"dtype": torch.int32, "device": self.device}
        return AttentionBatch(
            block_table=torch.zeros((1, self.max_blocks), **like),
            slot_mapping=slots,
            query_start=torch.arange(2, **like),
            seq_lens=torch.ones(1, **like),
            num_decodes=0,
            max_seq_len=size,
            query_lens_cpu=[size],
            seq_lens_cpu=[size],
        )
