"""Piecewise CUDA graphs: mixed steps up to a few thousand tokens, split at attention.

The device finishes a step of a few hundred tokens before Python has launched its kernels one by
one. What lies between two attention layers depends only on the number of tokens: each such piece is
one graph, captured for some numbers of tokens, and a step is padded to the next one. Attention,
whose launches depend on the entries' lengths, is launched eagerly in between. Up to how many tokens
this pays is measured at start, since it depends on the model and on the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from kvasir_engine.device.collectives import all_reduce_min
from kvasir_engine.device.graph_capture import CapturedSizes, GraphPool, capturing
from kvasir_engine.runner.batch import StepInputs
from kvasir_engine.runner.graphs.token_buffers import TokenBuffers

MEASURED_SIZES = (512, 1024, 2048, 4096, 8192)
"""Numbers of tokens at which launch time is compared with device time."""
MAX_DEVICE_TO_LAUNCH_RATIO = 1.5
"""Steps whose device time exceeds their launch time by more than this run eagerly."""


def piecewise_sizes(max_tokens: int) -> list[int]:
    """Return the numbers of tokens to capture, up to `max_tokens`; from 512 on at most an eighth
    apart."""
    sizes = [16, 32, 64, 96, 128, *range(192, 1025, 64), *range(1152, 2049, 128)]
    sizes += [*range(2304, 4097, 256), *range(4608, 8193, 512)]
    return [size for size in sizes if size <= max_tokens]


@dataclass(frozen=True, slots=True)
class _Segment:
    """A graph and the attention that follows it; the last has none."""

    graph: torch.cuda.CUDAGraph
    spec: AttentionSpec | None = None
    q: torch.Tensor | None = None
    out: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class _PiecewiseGraph:
    tokens: TokenBuffers
    hidden: torch.Tensor
    segments: list[_Segment]


class _NoAttention:
    """A backend whose attention takes no time."""

    graph_safe = True

    def write_new_kv(self, *given: Any) -> None:
        """AttentionBackend.write_new_kv; most layers write the cache themselves."""

    def attend(self, spec: AttentionSpec, q: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """AttentionBackend.attend."""
        return q


class _SplitAtAttention(_NoAttention):
    """A backend for captures: ends a graph at each attention layer and begins the next."""

    def __init__(self, pool: GraphPool, out: torch.Tensor, writer: AttentionBackend) -> None:
        """`out` takes the attention output of one layer after the other; `writer` writes the keys
        and values of layers that do not write them themselves, within the graph."""
        self.pool = pool
        self._out = out
        self._writer = writer
        self.segments: list[_Segment] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    def record(self, launch: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Capture what `launch` launches into `pieces`; return what it returns."""
        self._graph = self.pool.begin()
        try:
            hidden = launch()
        except BaseException:
            self._graph.capture_end()
            raise
        self.pool.end(self._graph)
        self.segments.append(_Segment(self._graph))
        return hidden

    def write_new_kv(self, *given: Any) -> None:
        """AttentionBackend.write_new_kv."""
        self._writer.write_new_kv(*given)

    def attend(self, spec: AttentionSpec, q: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """AttentionBackend.attend, deferred to the replay."""
        out = self._out[: q.numel()].view(q.shape)
        if self._graph is not None:
            self.pool.end(self._graph)
            self.segments.append(_Segment(self._graph, spec, q, out))
            self._graph = self.pool.begin()
        return out


@dataclass(slots=True, eq=False)
class PiecewiseGraphs:
    """Piecewise graphs of mixed steps, by number of tokens."""

    pool: GraphPool
    model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Maps token ids and positions to hidden states within `context`."""
    context: ForwardContext
    """Its query buffer bounds the size of a step."""
    num_groups: int
    device: torch.device
    steps: int = 0
    """Replayed steps."""
    _captured: CapturedSizes[_PiecewiseGraph] = field(
        default_factory=lambda: CapturedSizes("mixed steps")
    )

    def capture(self) -> None:
        """Capture all sizes that pay."""
        queries = self.context.queries
        if queries is None:
            return
        # Lazily: allocated after the measuring, and where running out of memory is expected.
        out = cache(lambda: torch.empty_like(queries.all))
        self._captured.capture(
            self.pool,
            lambda: piecewise_sizes(self._max_tokens(queries.tokens)),
            lambda size: self._capture(size, out()),
        )

    def clear(self) -> None:
        """Free all graphs."""
        self._captured.clear()

    def _max_tokens(self, limit: int) -> int:
        """Return the largest size up to `limit` whose steps would wait for launches."""
        found = min(limit, MEASURED_SIZES[0])
        for tokens in (size for size in MEASURED_SIZES if size <= limit):
            if not self._waits_for_launches(tokens):
                break
            found = tokens
        return piecewise_sizes(found)[-1] if found >= 16 else 0

    def run(self, inputs: StepInputs) -> torch.Tensor | None:
        """Return hidden states [>= tokens, hidden size] of a step, overwritten by the next step of
        its size; None when the step is larger than any captured size."""
        found = self._captured.smallest_holding(len(inputs.token_ids))
        if found is None:
            return None
        tokens = found.tokens.copy_inputs(inputs)
        self.context.batches = inputs.batches
        for segment in found.segments:
            segment.graph.replay()
            if segment.spec is not None and segment.q is not None and segment.out is not None:
                self._attend(segment.spec, segment.q[:tokens], segment.out[:tokens])
        self.steps += 1
        return found.hidden

    def _attend(self, spec: AttentionSpec, q: torch.Tensor, out: torch.Tensor) -> None:
        context = self.context
        cache, batch = context.caches[spec.layer], context.batch_of(spec)
        scales = context.scales_of(spec)
        context.backends[spec.layer].attend(spec, q, cache, batch, out, scales)

    def _waits_for_launches(self, tokens: int) -> bool:
        """Return True if any rank's device waits for launches: ranks must come to one decision."""
        hidden = self._device_to_launch_ratio(tokens) > MAX_DEVICE_TO_LAUNCH_RATIO
        return all_reduce_min([int(hidden)]) == [0]

    def _device_to_launch_ratio(self, tokens: int) -> float:
        """Measure a step without attention: its device time over the time of its launches."""
        inputs = self._inputs(tokens)
        begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        with forward_context(self._context_for(inputs, _NoAttention())):
            self.model(inputs.token_ids, inputs.positions)
            torch.cuda.synchronize(self.device)
            begin.record()
            started = time.perf_counter()
            self.model(inputs.token_ids, inputs.positions)
            launched = time.perf_counter() - started
            end.record()
            torch.cuda.synchronize(self.device)
        # Where launching is slower, the device's clock includes it.
        return float(begin.elapsed_time(end)) / 1e3 / launched

    def _capture(self, size: int, out: torch.Tensor) -> _PiecewiseGraph:
        inputs = self._inputs(size)
        # The caches' sizes are all that layers differ in when they write.
        backend = _SplitAtAttention(self.pool, out, self.context.backends[0])
        with capturing(), forward_context(self._context_for(inputs, backend)):
            # Warm-up: compiles kernels and creates handles, which a capture may not.
            self.model(inputs.token_ids, inputs.positions)
            hidden = backend.record(lambda: self.model(inputs.token_ids, inputs.positions))
        return _PiecewiseGraph(inputs, hidden, backend.segments)

    def _inputs(self, size: int) -> TokenBuffers:
        return TokenBuffers.of_size(size, self.num_groups, self.device)

    def _context_for(self, inputs: TokenBuffers, backend: AttentionBackend) -> ForwardContext:
        batches = [_only_slots(each) for each in inputs.slots]
        backends = [backend] * len(self.context.backends)
        return replace(self.context, backends=backends, batches=batches)


def _only_slots(slots: torch.Tensor) -> AttentionBatch:
    """Return a batch of which only the slots are read."""
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
