"""Which of cuBLASLt's algorithms multiplies a layer's weights: timed once, kept on disk.

What the library's heuristic likes best is what torch runs, and up to a sixth slower than the
fastest one it names. They are timed for the numbers of tokens that steps are captured with, each
on all layers' weights in turn, since weights are not in the GPU's cache when a step comes to them.
The choices stand below KVASIR_CACHE, in a file for each kind of GPU and version of the library.
"""

from __future__ import annotations

import json
import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from kvasir.template.convert import cache_directory
from kvasir_engine.kernels.cublaslt import Algorithm, CublasLt, Problem, algorithm_of, cublaslt
from kvasir_engine.runner.capturing import capturing

log = logging.getLogger(__name__)

CANDIDATES = 12
GAIN = 0.985
"""Of the time of torch's choice, at most, for another one to be made."""
TIMED_FLOPS = 1_000_000_000_000
"""Of one candidate, at least two products and at most one a layer."""
LEAST_TOKENS = 65
"""Fewer are the skinny kernel's."""
MOST_BYTES = 16 << 20
"""Of a file of choices; a larger one is not ours."""
Choice = tuple[int, ...] | None
"""An algorithm's words; None for torch's choice."""


class Choices:
    """By (tokens, outputs, inputs), with the file they are kept in."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known = _read(file)

    def get(self, key: tuple[int, int, int], choose: Callable[[], Choice]) -> Choice:
        """What is known, or what `choose` finds."""
        if key not in self._known:
            self._known[key] = choose()
        return self._known[key]

    def save(self) -> None:
        """To the file, as a whole: a reader sees the old one or the new one."""
        lines = [[*key, choice] for key, choice in sorted(self._known.items())]
        part = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(lines))
            part.replace(self._file)
        except OSError as error:
            log.warning("choices of matrix products are not kept: %s.", error)


def _read(file: Path) -> dict[tuple[int, int, int], Choice]:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        found: dict[tuple[int, int, int], Choice] = {}
        for tokens, outputs, inputs, words in json.loads(file.read_bytes()):
            if words is not None and len(words) != 8:
                raise ValueError(f"{len(words)} words")
            key = int(tokens), int(outputs), int(inputs)
            found[key] = None if words is None else tuple(int(word) for word in words)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        log.warning("%s is not read, products are timed again: %s.", file, error)
        return {}
    return found


class Products:
    """The chosen algorithms of one device."""

    def __init__(self, library: CublasLt, device: torch.device) -> None:
        self._library = library
        self._device = device
        name = torch.cuda.get_device_name(device).lower().replace(" ", "_")
        self._choices = Choices(
            cache_directory() / "products" / f"{name}-cublaslt-{library.version}.json"
        )
        self._sizes: dict[tuple[int, int], list[int]] = {}
        """Numbers of tokens that were tuned, by (outputs, inputs)."""
        self._algorithms: dict[tuple[int, int, int], Algorithm | None] = {}
        self._problems: dict[tuple[int, int, int, int, torch.dtype], Problem] = {}

    def tune(self, weights: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """Choose for `weights`, which are all of one shape and used in turn."""
        outputs, inputs = weights[0].shape
        for tokens in sizes:
            key = (tokens, outputs, inputs)
            choice = self._choices.get(key, partial(self._fastest, weights, tokens))
            made = None if choice is None else algorithm_of(choice)
            self._algorithms[key] = made
        known = self._sizes.setdefault((outputs, inputs), [])
        self._sizes[outputs, inputs] = sorted({*known, *sizes})

    def save(self) -> None:
        """Keep what was chosen."""
        self._choices.save()

    def multiply(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
        """x [tokens, in] times weight [out, in] transposed; None where torch's choice is best."""
        tokens, (outputs, inputs) = len(x), weight.shape
        sizes = self._sizes.get((outputs, inputs))
        if not sizes or not LEAST_TOKENS <= tokens <= sizes[-1] or x.stride(1) != 1:
            return None
        # Between two sizes the larger one's algorithm.
        near = sizes[bisect_left(sizes, tokens)]
        algorithm = self._algorithms[near, outputs, inputs]
        if algorithm is None:
            return None
        out = torch.empty((tokens, outputs), dtype=x.dtype, device=x.device)
        return out if self._launch(algorithm, x, weight, out) else None

    def _launch(
        self, algorithm: Algorithm, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor
    ) -> bool:
        key = (len(x), *weight.shape, x.stride(0), x.dtype)
        problem = self._problems.get(key)
        if problem is None:
            problem = self._problems[key] = self._library.problem(*key)
        return self._library.multiply(problem, algorithm, x, weight, out) == 0

    def _fastest(self, weights: Sequence[torch.Tensor], tokens: int) -> Choice:
        weight = weights[0]
        outputs, inputs = weight.shape
        x = torch.randn(tokens, inputs, dtype=weight.dtype, device=self._device)
        out = torch.empty((tokens, outputs), dtype=weight.dtype, device=self._device)
        want = torch.nn.functional.linear(x, weight)
        problem = self._library.problem(tokens, outputs, inputs, inputs, weight.dtype)
        right = []
        for algorithm in self._library.candidates(problem, CANDIDATES):
            out.fill_(float("nan"))
            if self._launch(algorithm, x, weight, out) and _same(out, want):
                right.append(algorithm)
        calls = max(2, min(len(weights), TIMED_FLOPS // (2 * tokens * weight.numel())))
        runs: list[Callable[[torch.Tensor], object]] = [
            partial(torch.nn.functional.linear, x),
            *(partial(self._launch, algorithm, x, out=out) for algorithm in right),
        ]
        times = _times(runs, [weights[call % len(weights)] for call in range(calls)])
        best = min(range(len(times)), key=times.__getitem__)
        if best == 0 or times[best] > GAIN * times[0]:
            return None
        return tuple(right[best - 1].data)


def _same(out: torch.Tensor, want: torch.Tensor) -> bool:
    """Up to the order of sums, rounded to 8 bits."""
    error = (out.float() - want.float()).norm() / want.float().norm()
    return bool(error < 1e-2)


def _times(
    runs: Sequence[Callable[[torch.Tensor], object]], weights: Sequence[torch.Tensor]
) -> list[float]:
    """Milliseconds of each over all weights, the better of two times; in graphs, since launches
    may take longer than what they launch."""
    graphs = [_graph(run, weights) for run in runs]
    found = [float("inf")] * len(runs)
    for _ in range(2):
        for i, graph in enumerate(graphs):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found[i] = min(found[i], begin.elapsed_time(end))
    return found


def _graph(
    run: Callable[[torch.Tensor], object], weights: Sequence[torch.Tensor]
) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with capturing():
        run(weights[0])
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for weight in weights:
                run(weight)
        finally:
            graph.capture_end()
    return graph


_by_device: dict[torch.device, Products] = {}


def products_on(device: torch.device) -> Products | None:
    """Of a device, made when first asked for; None where the library cannot be had."""
    if device not in _by_device:
        library = cublaslt(device)
        if library is None:
            log.warning("cuBLASLt is not found: matrix products run as torch chooses.")
            return None
        _by_device[device] = Products(library, device)
    return _by_device[device]


def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
    """`Products.multiply` on x's device, None where nothing was tuned there."""
    products = _by_device.get(x.device)
    return None if products is None else products.multiply(x, weight)
