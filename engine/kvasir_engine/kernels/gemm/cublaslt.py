"""Matrix products by cuBLASLt with an algorithm of one's own choice, called through ctypes.

torch takes the first algorithm that cuBLAS's heuristic names. The library (cuBLAS documentation,
"cublasLtMatmulAlgoGetHeuristic") names several, and which of them is fastest is known by timing
them: `tuned_gemm.py` does that. An algorithm is 64 bytes that mean something to one version of the
library on one kind of GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import NamedTuple

import torch

WORKSPACE_BYTES = 64 << 20
_TYPES = {torch.float16: 2, torch.bfloat16: 14}
_FP32, _COMPUTE_FP32, _TRANSPOSED = 0, 68, 1
_TRANS_A, _MAX_WORKSPACE = 3, 1
"""Attributes: CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES."""


class Algorithm(Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("data", c_uint64 * 8),)


def algorithm_of(words: Sequence[int]) -> Algorithm:
    """The algorithm of these eight words."""
    return Algorithm((c_uint64 * 8)(*words))


def distinct(algorithms: Iterable[Algorithm]) -> list[Algorithm]:
    """Each once, in their order."""
    return list({tuple(each.data): each for each in algorithms}.values())


class _Candidate(Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class CublasLt:
    """The library with a handle and a workspace on one device.

    Products of one stream only may be in flight, since they share the workspace.
    """

    def __init__(self, library: ctypes.CDLL, device: torch.device) -> None:
        """Raises OSError when the library refuses."""
        self._library = library
        self._handle = c_void_p()
        self._call("cublasLtCreate", byref(self._handle))
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._one, self._zero = c_float(1.0), c_float(0.0)
        library.cublasLtGetVersion.restype = c_size_t
        self.version: int = library.cublasLtGetVersion()
        library.cublasLtMatmul.argtypes = [
            *([c_void_p] * 3), *([c_void_p] * 4), c_void_p, *([c_void_p] * 4),
            POINTER(Algorithm), c_void_p, c_size_t, c_void_p,
        ]  # fmt: skip
        self._matmul = library.cublasLtMatmul

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise OSError(f"{name} returned status {status}.")

    def problem(
        self, tokens: int, outputs: int, inputs: int, stride: int, dtype: torch.dtype
    ) -> Problem:
        """x [tokens, inputs], whose rows are `stride` apart, times weight [outputs, inputs]^T."""
        kind = _TYPES[dtype]
        description = c_void_p()
        self._call("cublasLtMatmulDescCreate", byref(description), _COMPUTE_FP32, _FP32)
        self._call(
            "cublasLtMatmulDescSetAttribute",
            description, _TRANS_A, byref(c_int(_TRANSPOSED)), c_size_t(4),
        )  # fmt: skip
        # To the library a row-major matrix is a column-major one transposed.
        weight = self._layout(kind, inputs, outputs, inputs)
        x = self._layout(kind, inputs, tokens, stride)
        out = self._layout(kind, outputs, tokens, outputs)
        return Problem(description, weight, x, out)

    def _layout(self, kind: int, rows: int, columns: int, stride: int) -> c_void_p:
        layout = c_void_p()
        self._call(
            "cublasLtMatrixLayoutCreate",
            byref(layout), kind, c_uint64(rows), c_uint64(columns), c_int64(stride),
        )  # fmt: skip
        return layout

    def candidates(self, problem: Problem, most: int) -> list[Algorithm]:
        """Return at most `most` algorithms, the one that the heuristic likes best first."""
        preference, found = c_void_p(), c_int()
        results = (_Candidate * most)()
        self._call("cublasLtMatmulPreferenceCreate", byref(preference))
        try:
            self._call(
                "cublasLtMatmulPreferenceSetAttribute",
                preference, _MAX_WORKSPACE, byref(c_size_t(WORKSPACE_BYTES)), c_size_t(8),
            )  # fmt: skip
            self._call(
                "cublasLtMatmulAlgoGetHeuristic",
                self._handle, problem.description, problem.weight, problem.x, problem.out,
                problem.out, preference, c_int(most), results, byref(found),
            )  # fmt: skip
        finally:
            self._call("cublasLtMatmulPreferenceDestroy", preference)
        return [each.algorithm for each in results[: found.value] if each.state == 0]

    def supports(self, problem: Problem, algorithm: Algorithm) -> bool:
        """Return True if an algorithm, named for another problem, computes this one."""
        found = _Candidate()
        status = self._library.cublasLtMatmulAlgoCheck(
            self._handle, problem.description, problem.weight, problem.x, problem.out,
            problem.out, byref(algorithm), byref(found),
        )  # fmt: skip
        return not status and not found.state and found.workspace <= WORKSPACE_BYTES

    def launch_gemm(
        self,
        problem: Problem,
        algorithm: Algorithm,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
    ) -> int:
        """Launch out = x weight^T on the current stream; the library's status, 0 for success."""
        at = out.data_ptr()
        status: int = self._matmul(
            self._handle, problem.description, byref(self._one), weight.data_ptr(), problem.weight,
            x.data_ptr(), problem.x, byref(self._zero), at, problem.out, at, problem.out,
            byref(algorithm), self._workspace.data_ptr(), WORKSPACE_BYTES,
            torch.cuda.current_stream(x.device).cuda_stream,
        )  # fmt: skip
        return status


class Problem(NamedTuple):
    """The library's descriptions of one product; they live as long as the process."""

    description: c_void_p
    weight: c_void_p
    x: c_void_p
    out: c_void_p


@cache
def cublaslt(device: torch.device) -> CublasLt | None:
    """The library that torch itself uses, or None where it cannot be had."""
    if torch.version.cuda is None:
        return None
    try:
        library = ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
        return CublasLt(library, device)
    except (OSError, AttributeError):
        return None
