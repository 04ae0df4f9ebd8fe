"""Times of one GEMM by several algorithms, on weights that are not in the GPU's cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import islice

import torch

from kvasir_engine.device.graph_capture import GraphPool, capturing
from kvasir_engine.kernels.gemm.cublaslt import Algorithm, CublasLt, distinct

TIMED_FLOPS = 1_000_000_000_000
"""Floating-point operations of one candidate's timing: at least two GEMMs and at most one a
layer."""
SCREENED_CALLS = 4
FINALISTS = 8
"""Candidates that are timed anew, over more weights and in turns."""
ROUNDS = 3
Run = Callable[[torch.Tensor], object]
Timed = tuple[float, Algorithm | None]
"""Milliseconds of a product; None is torch's choice."""


class Autotuner:
    """Time candidate algorithms for x [tokens, inputs] on `weights`, used in turn so that none is
    in the cache."""

    def __init__(self, library: CublasLt, weights: Sequence[torch.Tensor], tokens: int) -> None:
        """Random tokens."""
        weight = weights[0]
        outputs, inputs = weight.shape
        self._library = library
        self._x = torch.randn(tokens, inputs, dtype=weight.dtype, device=weight.device)
        self._out = torch.empty((tokens, outputs), dtype=weight.dtype, device=weight.device)
        self._problem = library.problem(tokens, outputs, inputs, inputs, weight.dtype)
        calls = max(2, min(len(weights), TIMED_FLOPS // (2 * tokens * weight.numel())))
        self._weights = [weights[call % len(weights)] for call in range(calls)]

    def heuristic_candidates(self, most: int) -> list[Algorithm]:
        """Return at most `most` algorithms that the library's heuristic names."""
        return self._library.candidates(self._problem, most)

    def ranked(self, algorithms: Sequence[Algorithm]) -> list[Timed]:
        """Torch's choice and the fastest of those that are right, the fastest first."""
        found = self._finalists(algorithms)
        runs: list[Run] = [partial(torch.nn.functional.linear, self._x)]
        runs += [partial(self._launch, algorithm) for algorithm in found]
        times = _times(runs, self._weights, ROUNDS)
        return sorted(zip(times, [None, *found], strict=True), key=lambda timed: timed[0])

    def _finalists(self, algorithms: Sequence[Algorithm]) -> list[Algorithm]:
        able = [each for each in distinct(algorithms) if self._runs(each)]
        runs: list[Run] = [partial(self._launch, algorithm) for algorithm in able]
        times = _times(runs, self._weights[:SCREENED_CALLS], 1)
        in_order = (able[at] for at in sorted(range(len(able)), key=times.__getitem__))
        return list(islice(filter(self._is_right, in_order), FINALISTS))

    def _runs(self, algorithm: Algorithm) -> bool:
        able = self._library.supports(self._problem, algorithm)
        return able and self._launch(algorithm, self._weights[0])

    def _launch(self, algorithm: Algorithm, weight: torch.Tensor) -> bool:
        status = self._library.launch_gemm(self._problem, algorithm, self._x, weight, self._out)
        return status == 0

    def _is_right(self, algorithm: Algorithm) -> bool:
        """Return whether the result equals torch's up to summation order (relative error < 1 %)."""
        self._out.fill_(float("nan"))
        self._launch(algorithm, self._weights[0])
        error = (self._out.float() - self._want).norm() / self._want.norm()
        return bool(error < 1e-2)

    @cached_property
    def _want(self) -> torch.Tensor:
        return torch.nn.functional.linear(self._x, self._weights[0]).float()


def _times(runs: Sequence[Run], weights: Sequence[torch.Tensor], rounds: int) -> list[float]:
    """Milliseconds of each over all weights, the median of `rounds` that take turns; in graphs,
    since launches may take longer than what they launch."""
    graphs = [_graph(run, weights) for run in runs]
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for graph, times in zip(graphs, found, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / len(weights))
    return [sorted(times)[len(times) // 2] for times in found]


def _graph(run: Run, weights: Sequence[torch.Tensor]) -> torch.cuda.CUDAGraph:
    def launch() -> None:
        # Keeps no result, so that the next one takes its place.
        for weight in weights:
            run(weight)

    with capturing():
        run(weights[0])
        graph, _ = GraphPool().record(launch)
    return graph


def torch_milliseconds(ranked: Sequence[Timed]) -> float:
    """Milliseconds of torch's choice."""
    return next(time for time, algorithm in ranked if algorithm is None)
