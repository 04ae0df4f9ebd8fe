"""Autotuned GEMMs: choose the fastest cuBLASLt algorithm for each layer shape, from a shipped table
or by timing once.

What the library's heuristic likes best is what torch runs; the fastest one it names, for this
number of tokens or for another, takes up to a third less time. Those it names and those that were
fastest for the shapes that are shipped are timed for the numbers of tokens that steps are captured
with, each on all layers' weights in turn, since weights are not in the GPU's cache when a step
comes to them. The choices stand below KVASIR_CACHE, in a file for each kind of GPU and version of
the library. A start has a time budget for it; what is not timed within that serves as it is, by the
choice for the next larger number of tokens, and is timed by the next start.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from kvasir.text.tokenizer_conversion import cache_directory
from kvasir_engine.device.gpu_kind import GpuKind, gpu_kind, nearest, parsed
from kvasir_engine.kernels.gemm.algorithm_table import AlgorithmTable, GemmChoice
from kvasir_engine.kernels.gemm.autotune import Autotuner, Timed, torch_milliseconds
from kvasir_engine.kernels.gemm.cublaslt import Algorithm, CublasLt, Problem, algorithm_of, cublaslt

log = logging.getLogger(__name__)

CANDIDATES = 12
SHIPPED_CANDIDATES = 24
"""Candidates that were fastest for shapes that are shipped."""
MAX_RELATIVE_TIME = 0.985
"""Largest accepted ratio of an algorithm's time to that of torch's choice."""
MIN_TUNED_TOKENS = 17
"""Fewer are the skinny kernel's, as are more where it was measured to be faster."""


def file_name(version: int, kind: GpuKind) -> str:
    """Return the name of the algorithm table for this kind of GPU and version of cuBLASLt."""
    return f"algorithms-{kind}-cublaslt-{version}.json"


def shipped_table(version: int, kind: GpuKind) -> Path | None:
    """Return the table of the most similar GPU; algorithms mean something to one version alone."""
    tables = Path(__file__).parent.glob(f"algorithms-*-cublaslt-{version}.json")
    return nearest(tables, kind)


class TunedGemms:
    """Autotuned cuBLASLt GEMMs of one device."""

    def __init__(self, library: CublasLt, device: torch.device) -> None:
        self._library = library
        kind, version = gpu_kind(device), library.version
        shipped = shipped_table(version, kind)
        of = None if shipped is None else parsed(shipped.name)
        if not kind.is_like(of):
            log.info(
                "cuBLASLt %s has no table of algorithms for %s (%s): %s.",
                version,
                torch.cuda.get_device_name(device),
                kind,
                "the fastest are found by timing" if of is None else f"that for {of} is used",
            )
        self._choices = AlgorithmTable(
            cache_directory() / "gemm" / file_name(version, kind),
            shipped,
            # Elsewhere other multiprocessors share a GEMM: its fastest are candidates here.
            trusted=of is not None and of.multiprocessors == kind.multiprocessors,
        )
        self._others = [
            algorithm_of(words) for words in self._choices.shipped_algorithms(SHIPPED_CANDIDATES)
        ]
        self._sizes: dict[tuple[int, int], list[int]] = {}
        """Numbers of tokens that were tuned, by (outputs, inputs)."""
        self._algorithms: dict[tuple[int, int, int], Algorithm | None] = {}
        self._problems: dict[tuple[int, int, int, int, torch.dtype], Problem] = {}

    def tune(
        self, weights: Sequence[torch.Tensor], sizes: Sequence[int], deadline: float = math.inf
    ) -> int:
        """Choose for `weights`, which are all of one shape and used in turn; return how many sizes
        are left unchosen, since they would have been timed after `deadline` (monotonic)."""
        outputs, inputs = weights[0].shape
        chosen_for = []
        for tokens in sizes:
            key = (tokens, outputs, inputs)
            if not self._choices.knows(key) and time.monotonic() > deadline:
                continue
            choice = self._choices.get(key, partial(self._fastest, weights, tokens))
            self._algorithms[key] = None if choice is None else algorithm_of(choice)
            chosen_for.append(tokens)
        known = self._sizes.setdefault((outputs, inputs), [])
        self._sizes[outputs, inputs] = sorted({*known, *chosen_for})
        return len(sizes) - len(chosen_for)

    def save(self) -> None:
        """Keep what was chosen."""
        self._choices.save()

    def tuned_gemm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
        """x [tokens, in] times weight [out, in] transposed; None where torch's choice is best."""
        tokens, (outputs, inputs) = len(x), weight.shape
        sizes = self._sizes.get((outputs, inputs))
        if not sizes or not MIN_TUNED_TOKENS <= tokens <= sizes[-1] or x.stride(1) != 1:
            return None
        # Between two sizes the larger one's algorithm.
        near = sizes[bisect_left(sizes, tokens)]
        algorithm = self._algorithms[near, outputs, inputs]
        if algorithm is None:
            return None
        out = torch.empty((tokens, outputs), dtype=x.dtype, device=x.device)
        if self._launch(algorithm, x, weight, out):
            return out
        self._algorithms[near, outputs, inputs] = None
        log.warning(
            "cuBLASLt's algorithm for %d x %d x %d fails: torch's choice multiplies from now on.",
            tokens,
            outputs,
            inputs,
        )
        return None

    def _launch(
        self, algorithm: Algorithm, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor
    ) -> bool:
        key = (len(x), *weight.shape, x.stride(0), x.dtype)
        problem = self._problems.get(key)
        if problem is None:
            problem = self._problems[key] = self._library.problem(*key)
        return self._library.launch_gemm(problem, algorithm, x, weight, out) == 0

    def _fastest(self, weights: Sequence[torch.Tensor], tokens: int) -> GemmChoice:
        autotuner = Autotuner(self._library, weights, tokens)
        return chosen(
            autotuner.ranked([*autotuner.heuristic_candidates(CANDIDATES), *self._others])
        )


def chosen(ranked: Sequence[Timed]) -> GemmChoice:
    """The fastest, unless torch's choice is hardly slower."""
    best, algorithm = ranked[0]
    if algorithm is None or best > MAX_RELATIVE_TIME * torch_milliseconds(ranked):
        return None
    return tuple(algorithm.data)


_by_device: dict[torch.device, TunedGemms] = {}


def tuned_gemms_on(device: torch.device) -> TunedGemms | None:
    """Return the autotuned GEMMs of `device`, created on first use; None when cuBLASLt is not
    available."""
    if device not in _by_device:
        library = cublaslt(device)
        if library is None:
            log.warning("cuBLASLt is not available: GEMMs use torch's default algorithm.")
            return None
        _by_device[device] = TunedGemms(library, device)
    return _by_device[device]


def tuned_gemm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
    """`TunedGemms.tuned_gemm` on x's device, None where nothing was tuned there."""
    gemms = _by_device.get(x.device)
    return None if gemms is None else gemms.tuned_gemm(x, weight)
