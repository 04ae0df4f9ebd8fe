"""CUDA graphs of small steps that are no plain decodes, broken at attention.

A step of a few hundred tokens is over on the device before Python has launched it a kernel at a
time. What lies between two attention layers depends on the number of tokens alone: it is captured
as one graph a piece, for some numbers of tokens, and a step is padded to the next one. Attention
itself, whose launches depend on the entries' lengths, is launched in between. Up to how many tokens
this pays is measured, since it depends on the model and on the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from kvasir_engine.attention.base import (
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    ForwardContext,
    forward_context,
)
from kvasir_engine.runner.batch import StepInputs
from kvasir_engine.runner.capturing import CapturedSizes, capturing
from kvasir_engine.runner.token_buffers import TokenBuffers

TRIED = (512, 1024, 2048, 4096, 8192)
"""Tokens at which launches are compared with the device's time."""
BOUND_BY_LAUNCHES = 1.5
"""The device's time over that of the launches, up to which a step may wait for them."""


def piece_sizes(most: int) -> list[int]:
    """Numbers of tokens that are captured, up to `most`: at most an eighth apart from 512 on."""
    sizes = [16, 32, 64, 96, 128, *range(192, 1025, 64), *range(1152, 2049, 128)]
    sizes += [*range(2304, 4097, 256), *range(4608, 8193, 512)]
    return [size for size in sizes if size <= most]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A graph and the attention after it, none after the last."""

    graph: torch.cuda.CUDAGraph
    spec: AttentionSpec | None = None
    q: torch.Tensor | None = None
    out: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Pieces:
    tokens: TokenBuffers
    hidden: torch.Tensor
    pieces: list[_Piece]


class _Cutter:
    """Stands for the backend during a capture: ends a piece at each layer and begins the next."""

    graph_safe = True

    def __init__(self, out: torch.Tensor) -> None:
        """`out` takes what attention makes, of one layer after the other."""
        self._out = out
        self.pieces: list[_Piece] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._pool: Any = None

    def begin(self, pool: Any) -> None:
        """Begin the first piece, in `pool`'s memory or in memory of its own."""
        self._pool = pool
        self._begin()

    def end(self) -> Any:
        """End the last piece; the pool of all."""
        if self._graph is not None:
            self.pieces.append(_Piece(self._end(self._graph)))
        return self._pool

    def write(
        self, cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """AttentionBackend.write; layers that can be captured write by themselves."""
        raise NotImplementedError

    def attend(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """AttentionBackend.attend, to be done later."""
        out = self._out[: q.numel()].view(q.shape)
        if self._graph is not None:
            self.pieces.append(_Piece(self._end(self._graph), spec, q, out))
            self._begin()
        return out

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _end(self, graph: torch.cuda.CUDAGraph) -> torch.cuda.CUDAGraph:
        graph.capture_end()
        self._pool = self._pool or graph.pool()
        return graph


class _NoAttention(_Cutter):
    """Attention that takes no time."""

    def __init__(self) -> None:
        """Of nothing."""

    def attend(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """AttentionBackend.attend."""
        return q


class PieceGraphs:
    """The captured pieces of each size."""

    def __init__(
        self,
        model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        context: ForwardContext,
        *,
        num_groups: int,
        device: torch.device,
    ) -> None:
        """`model` makes hidden states of token ids and positions within `context`, whose query
        buffer bounds the size of a step."""
        self._model = model
        self._context = context
        self._num_groups = num_groups
        self._device = device
        self._captured = CapturedSizes[_Pieces]("mixed steps")
        self._pool: Any = None
        self.steps = 0
        """Steps that ran in pieces."""

    def capture(self) -> None:
        """Capture all sizes, the largest first; out of memory ends it with what there is."""
        queries = self._context.queries
        if queries is None:
            return
        # Not before the measuring, and where running out of memory is expected.
        out = cache(lambda: torch.empty_like(queries.all))
        self._captured.capture(
            lambda: piece_sizes(self._most_tokens(queries.tokens)),
            lambda size: self._capture(size, out()),
        )

    def _most_tokens(self, most: int) -> int:
        """Of the sizes, the largest whose steps would wait for launches."""
        found = min(most, TRIED[0])
        for tokens in (size for size in TRIED if size <= most):
            if self._device_time(tokens) > BOUND_BY_LAUNCHES:
                break
            found = tokens
        return piece_sizes(found)[-1] if found >= 16 else 0

    def run(self, inputs: StepInputs) -> torch.Tensor | None:
        """Hidden states [at least tokens, size] of a step, overwritten by the next one of its
        size; None when it is larger than any."""
        found = self._captured.holding(len(inputs.token_ids))
        if found is None:
            return None
        tokens = found.tokens.put(inputs)
        self._context.batches = inputs.batches
        for piece in found.pieces:
            piece.graph.replay()
            if piece.spec is not None and piece.q is not None and piece.out is not None:
                self._attend(piece.spec, piece.q[:tokens], piece.out[:tokens])
        self.steps += 1
        return found.hidden

    def _attend(self, spec: AttentionSpec, q: torch.Tensor, out: torch.Tensor) -> None:
        context = self._context
        cache, batch = context.caches[spec.layer], context.batch_of(spec)
        context.backend.attend(spec, q, cache, batch, out)

    def _device_time(self, tokens: int) -> float:
        """Of a step without attention, over the time of its launches."""
        inputs = self._inputs(tokens)
        begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        with forward_context(self._context_for(inputs, _NoAttention())):
            self._model(inputs.token_ids, inputs.positions)
            torch.cuda.synchronize(self._device)
            begin.record()
            started = time.perf_counter()
            self._model(inputs.token_ids, inputs.positions)
            launched = time.perf_counter() - started
            end.record()
            torch.cuda.synchronize(self._device)
        # Where launches are the slower, the device's clock has their time too.
        return float(begin.elapsed_time(end)) / 1e3 / launched

    def _capture(self, size: int, out: torch.Tensor) -> _Pieces:
        inputs = self._inputs(size)
        cutter = _Cutter(out)
        with capturing(), forward_context(self._context_for(inputs, cutter)):
            # Compiles kernels and makes handles, which a capture may not.
            self._model(inputs.token_ids, inputs.positions)
            cutter.begin(self._pool)
            try:
                hidden = self._model(inputs.token_ids, inputs.positions)
            finally:
                self._pool = cutter.end()
        return _Pieces(inputs, hidden, cutter.pieces)

    def _inputs(self, size: int) -> TokenBuffers:
        return TokenBuffers.of_size(size, self._num_groups, self._device)

    def _context_for(self, inputs: TokenBuffers, backend: AttentionBackend) -> ForwardContext:
        batches = [_only_slots(each) for each in inputs.slots]
        return replace(self._context, backend=backend, batches=batches)


def _only_slots(slots: torch.Tensor) -> AttentionBatch:
    """A batch of which only the slots are read."""
    nothing = slots.new_zeros(0)
    return AttentionBatch(
        block_table=nothing,
        slot_mapping=slots,
        query_start=nothing,
        seq_lens=nothing,
        num_decodes=0,
        max_seq_len=0,
        query_lens_cpu=[],
        seq_lens_cpu=[],
    )
