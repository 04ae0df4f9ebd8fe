"""The memory pool of CUDA graphs, and graphs by captured size."""

from __future__ import annotations

import gc
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, TypeVar

import torch

from kvasir_engine.device.collectives import all_reduce_min, tensor_parallel

log = logging.getLogger(__name__)
T = TypeVar("T")


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """Return the side stream of all captures on a device.

    One stream, since torch's allocator gives what one stream has freed to no other, in a graph
    pool as elsewhere: on streams of their own, graphs of one pool share no memory.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def capturing() -> Iterator[None]:
    """Run the body on a side stream, ordered after and before the current stream's work.

    Garbage collection pauses: freeing a graph during another one's capture breaks the capture.
    torch.cuda.graph() collects before each capture instead, which takes longer than the capture.
    """
    stream = _capture_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        if collects:
            gc.enable()
    torch.cuda.current_stream().wait_stream(stream)


class GraphPool:
    """The private memory pool of all CUDA graphs: they share it, since only one runs at a time."""

    def __init__(self) -> None:
        """Create nothing: the first graph creates the pool."""
        self._handle: Any = None
        self.keep_free = 0
        """Bytes of the GPU that captures must leave to steps and to other processes."""

    def has_room(self) -> bool:
        """Return False when a further capture could take what is to stay free, on any rank: the
        ranks capture the same graphs, since their collectives are in them."""
        if not self.keep_free:
            return True
        return all_reduce_min([int(self._has_room_here())]) == [1]

    def _has_room_here(self) -> bool:
        if torch.cuda.mem_get_info()[0] < self.keep_free:
            # What torch's allocator has kept of earlier steps counts as free.
            torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0] >= self.keep_free

    def begin(self) -> torch.cuda.CUDAGraph:
        """Begin to capture a graph; within `capturing`."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._handle, capture_error_mode="thread_local")
        return graph

    def end(self, graph: torch.cuda.CUDAGraph) -> None:
        """End the capture of `graph`, whose memory stays in the pool."""
        graph.capture_end()
        self._handle = self._handle or graph.pool()

    def record(self, launch: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """Capture what `launch` launches; return the graph and what `launch` returned."""
        graph = self.begin()
        try:
            result = launch()
        except BaseException:
            graph.capture_end()
            raise
        self.end(graph)
        return graph, result


def raise_where_ranks_wait() -> None:
    """Raise the error that is being handled if other ranks wait in this capture's collectives."""
    if tensor_parallel().size > 1:
        raise


class CapturedSizes(Generic[T]):
    """Captured graphs by the number of tokens they hold."""

    def __init__(self, steps: str) -> None:
        """`steps` names the steps in a warning."""
        self._steps = steps
        self._by_size: dict[int, T] = {}
        self._sizes: list[int] = []

    def capture(
        self, pool: GraphPool, sizes: Callable[[], Sequence[int]], capture: Callable[[int], T]
    ) -> None:
        """Capture all `sizes` into `pool`, the largest first, whose memory serves the others.

        `sizes` may measure to find them. Without room for the next it ends with what was captured.
        """
        try:
            for size in reversed(sizes()):
                if not pool.has_room():
                    self._warn()
                    break
                self._by_size[size] = capture(size)
        except torch.OutOfMemoryError:
            raise_where_ranks_wait()
            self._warn()
        self._sizes = sorted(self._by_size)

    def _warn(self) -> None:
        log.warning(
            "no memory is left for CUDA graphs of %s: sizes %s have them, others run without; "
            "lower --kv-cache-memory-bytes, --max-num-batched-tokens or --max-num-seqs.",
            self._steps,
            sorted(self._by_size) or "none",
        )

    def clear(self) -> None:
        """Free all graphs."""
        self._by_size.clear()
        self._sizes.clear()

    @property
    def largest(self) -> int:
        """The largest captured size, 0 without any."""
        return self._sizes[-1] if self._sizes else 0

    def smallest_holding(self, tokens: int) -> T | None:
        """Return what was captured for the smallest size that holds `tokens`, or None."""
        at = bisect_left(self._sizes, tokens)
        return None if at == len(self._sizes) else self._by_size[self._sizes[at]]
