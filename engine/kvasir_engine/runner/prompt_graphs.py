"""CUDA graphs of steps that compute a short prompt and nothing else, attention included.

That is what a request to an idle engine waits for. In pieces (`piece_graphs.py`) the device waits
at each layer, before attention and after it, for what is launched next. Attention's launches depend
on the entries of a step; with one entry they depend on its number of tokens alone, and a step is
padded to a size that was captured: tiles behind its last token end at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvasir_engine.attention.base import AttentionBatch, ForwardContext, forward_context
from kvasir_engine.runner.batch import StepInputs
from kvasir_engine.runner.capturing import CapturedSizes, GraphPool, capturing
from kvasir_engine.runner.token_buffers import TokenBuffers


def prompt_sizes(most: int) -> list[int]:
    """Numbers of tokens that are captured, up to `most`; more take long on any device."""
    sizes = [16, *range(64, 513, 64), *range(640, 1025, 128)]
    return [size for size in sizes if size <= most]


@dataclass(frozen=True, slots=True)
class _Prompt:
    graph: torch.cuda.CUDAGraph
    tokens: TokenBuffers
    batches: list[AttentionBatch]
    """One a KV group, of one entry: tables, lengths and starts are read by the graph."""
    hidden: torch.Tensor


class PromptGraphs:
    """The captured sizes."""

    def __init__(
        self,
        model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        context: ForwardContext,
        *,
        num_groups: int,
        max_blocks: int,
        device: torch.device,
    ) -> None:
        """`model` makes hidden states of token ids and positions within `context`, whose query
        buffer bounds the size of a step; an entry has at most `max_blocks` blocks."""
        self._model = model
        self._context = context
        self._num_groups = num_groups
        self._max_blocks = max_blocks
        self._device = device
        self._captured = CapturedSizes[_Prompt]("lone prompts")
        self._pool = GraphPool()
        self.steps = 0
        """Steps that ran in a graph."""

    def capture(self) -> None:
        """Capture all sizes, the largest first; out of memory ends it with what there is."""
        queries = self._context.queries
        if queries is None:
            return
        self._captured.capture(lambda: prompt_sizes(queries.tokens), self._capture)

    def run(self, inputs: StepInputs) -> torch.Tensor | None:
        """Hidden states [at least tokens, size] of a step, overwritten by the next one of its
        size; None when it is no lone prompt or larger than any."""
        if len(inputs.rows) != 1 or inputs.batches[0].num_decodes:
            return None
        found = self._captured.holding(len(inputs.token_ids))
        if found is None:
            return None
        found.tokens.put(inputs)
        for mine, batch in zip(found.batches, inputs.batches, strict=True):
            mine.block_table[:, : batch.block_table.shape[1]].copy_(batch.block_table)
            mine.query_start.copy_(batch.query_start)
            mine.seq_lens.copy_(batch.seq_lens)
        found.graph.replay()
        self.steps += 1
        return found.hidden

    def _capture(self, size: int) -> _Prompt:
        tokens = TokenBuffers.of_size(size, self._num_groups, self._device)
        batches = [self._batch(size, slots) for slots in tokens.slots]

        def forward() -> torch.Tensor:
            return self._model(tokens.token_ids, tokens.positions)

        with capturing(), forward_context(replace(self._context, batches=batches)):
            # Compiles kernels, makes handles and divides the prompt, which a capture may not.
            forward()
            graph, hidden = self._pool.record(forward)
        return _Prompt(graph, tokens, batches, hidden)

    def _batch(self, size: int, slots: torch.Tensor) -> AttentionBatch:
        """A prompt of one token in the null block, launched as one of `size`."""
        like: dict[str, Any] = {"dtype": torch.int32, "device": self._device}
        return AttentionBatch(
            block_table=torch.zeros((1, self._max_blocks), **like),
            slot_mapping=slots,
            query_start=torch.arange(2, **like),
            seq_lens=torch.ones(1, **like),
            num_decodes=0,
            max_seq_len=size,
            query_lens_cpu=[size],
            seq_lens_cpu=[size],
        )
