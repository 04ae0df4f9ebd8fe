"""What every capture of a CUDA graph needs around it."""

from __future__ import annotations

import gc
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

log = logging.getLogger(__name__)
T = TypeVar("T")


@contextmanager
def capturing() -> Iterator[None]:
    """A stream of its own, after and before the current one's work.

    No garbage is collected meanwhile: a graph that is freed during another one's capture breaks it.
    torch.cuda.graph() collects it before every single one, which takes longer than the capture.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
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
    """Memory of graphs of which only one runs at a time."""

    def __init__(self) -> None:
        """The first graph's own."""
        self._pool: Any = None

    def record(self, launch: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """What `launch` launches, as a graph, with what it returned; within `capturing`."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            result = launch()
        finally:
            graph.capture_end()
        self._pool = self._pool or graph.pool()
        return graph, result


class CapturedSizes(Generic[T]):
    """What was captured for steps of some numbers of tokens."""

    def __init__(self, steps: str) -> None:
        """`steps` names them in a warning."""
        self._steps = steps
        self._by_size: dict[int, T] = {}
        self._sizes: list[int] = []

    def capture(self, sizes: Callable[[], Sequence[int]], capture: Callable[[int], T]) -> None:
        """All `sizes`, which are found by measuring, the largest first; out of memory, of the
        measuring too, ends it with what there is."""
        try:
            for size in reversed(sizes()):
                self._by_size[size] = capture(size)
        except torch.OutOfMemoryError:
            names = (self._steps, sorted(self._by_size) or "none")
            log.warning("out of memory while capturing %s: sizes %s have graphs.", *names)
        self._sizes = sorted(self._by_size)

    def holding(self, tokens: int) -> T | None:
        """Of the smallest size that holds so many tokens, None when there are more than any."""
        at = bisect_left(self._sizes, tokens)
        return None if at == len(self._sizes) else self._by_size[self._sizes[at]]
