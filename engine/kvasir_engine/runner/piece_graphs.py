"""CUDA graphs of small steps that are no plain decodes, broken at attention.

A step of a few hundred tokens is over on the device before Python has launched it a kernel at a
time. What lies between two attention layers depends on the number of tokens alone: it is captured
as one graph a piece, for a few numbers of tokens, and a step is padded to the next one. Attention
itself, whose launches depend on the entries' lengths, is launched in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from kvasir_engine.runner.capturing import capturing

log = logging.getLogger(__name__)

SIZES = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512)
"""Tokens; beyond, the device takes longer than the launches."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A graph and the attention after it, none after the last."""

    graph: torch.cuda.CUDAGraph
    spec: AttentionSpec | None = None
    q: torch.Tensor | None = None
    out: torch.Tensor | None = None


@dataclass(slots=True)
class _Pieces:
    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: list[torch.Tensor]
    """One a KV group; padding goes to the null block."""
    hidden: torch.Tensor
    pieces: list[_Piece]


class _Cutter:
    """Stands for the backend during a capture: ends a piece at each layer and begins the next."""

    graph_safe = True

    def __init__(self) -> None:
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
        out = torch.empty_like(q)
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
        """`model` makes hidden states of token ids and positions within `context`."""
        self._model = model
        self._context = context
        self._num_groups = num_groups
        self._device = device
        self._by_size: dict[int, _Pieces] = {}
        self._pool: Any = None
        self.steps = 0
        """Steps that ran in pieces."""

    def capture(self) -> None:
        """Capture all sizes, the largest first; out of memory ends it with what there is."""
        for size in reversed(SIZES):
            try:
                self._by_size[size] = self._capture(size)
            except torch.OutOfMemoryError:
                log.warning("out of memory while capturing steps of %d tokens.", size)
                break

    def run(self, inputs: StepInputs) -> torch.Tensor | None:
        """Hidden states [at least tokens, size] of a step, overwritten by the next one of its
        size; None when it is larger than any."""
        tokens = len(inputs.token_ids)
        size = next((size for size in sorted(self._by_size) if size >= tokens), None)
        if size is None:
            return None
        found = self._by_size[size]
        found.token_ids[:tokens].copy_(inputs.token_ids)
        found.positions[:tokens].copy_(inputs.positions)
        for slots, batch in zip(found.slots, inputs.batches, strict=True):
            slots[:tokens].copy_(batch.slot_mapping)
            slots[tokens:].zero_()
        self._context.batches = inputs.batches
        for piece in found.pieces:
            piece.graph.replay()
            if piece.spec is not None and piece.q is not None and piece.out is not None:
                self._attend(piece.spec, piece.q[:tokens], piece.out[:tokens])
        self.steps += 1
        return found.hidden

    def _attend(self, spec: AttentionSpec, q: torch.Tensor, out: torch.Tensor) -> None:
        context = self._context
        context.backend.attend(spec, q, context.caches[spec.layer], context.batch_of(spec), out)

    def _capture(self, size: int) -> _Pieces:
        def zeros() -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int64, device=self._device)

        token_ids, positions = zeros(), zeros()
        slots = [zeros() for _ in range(self._num_groups)]
        cutter = _Cutter()
        backend: AttentionBackend = cutter
        context = replace(
            self._context, backend=backend, batches=[_only_slots(each) for each in slots]
        )
        with capturing(), forward_context(context):
            # Compiles kernels and makes handles, which a capture may not.
            self._model(token_ids, positions)
            cutter.begin(self._pool)
            try:
                hidden = self._model(token_ids, positions)
            finally:
                self._pool = cutter.end()
        return _Pieces(token_ids, positions, slots, hidden, cutter.pieces)


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
