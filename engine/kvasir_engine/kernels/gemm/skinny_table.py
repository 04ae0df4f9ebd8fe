"""Layers of few tokens that the skinny kernel computes, and its tuning: measured, never guessed.

The tables beside this file are written by benchmarks/gpu/skinny_gemm.py, one for each kind of GPU,
those that begin with `fp8-` for layers in float8; a GPU without one takes that of the most similar
kind of its compute capability, as far as tiles fit its shared memory. A line is (outputs, inputs,
form, tokens, and SkinnyTuning's fields), without these where cuBLAS was faster or, for sums in
parts, sums that were not. A shape that was not measured is computed as the most similar one that
was; cuBLAS computes those that are like none.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from kvasir_engine.device.gpu_kind import gpu_kind, nearest, parsed
from kvasir_engine.device.tile_memory import program_bytes
from kvasir_engine.kernels.gemm.skinny import (
    MAX_SKINNY_TOKENS,
    Gate,
    SkinnyTuning,
    fits,
    skinny_linear,
    skinny_parts_of,
)

log = logging.getLogger(__name__)

Form: TypeAlias = Literal["plain", "gated", "parts"]
"""A layer; one whose first half of outputs is a gate; one whose sums the kernel after it forms."""
SkinnyKey = tuple[int, int, Form, int]
"""Outputs, inputs, form, tokens."""
MAX_DISTANCE = 1.0
"""Between a shape and the measured one that stands for it: the sum of their sizes' ratios, as
powers of two."""
_HALF_DTYPES = (torch.bfloat16, torch.float16)


class SkinnyTable:
    """Tunings as measured on one kind of GPU, by layer and number of tokens."""

    def __init__(self, measured: dict[SkinnyKey, SkinnyTuning | None]) -> None:
        """None: cuBLAS was faster."""
        self.measured = measured
        self._known: dict[SkinnyKey, SkinnyTuning | None] = {}

    @classmethod
    def read(cls, file: Path, most_bytes: int | None = None, *, itemsize: int = 2) -> SkinnyTable:
        """Read a table, without the tunings whose tiles of numbers of `itemsize` bytes take more
        than `most_bytes`."""
        measured: dict[SkinnyKey, SkinnyTuning | None] = {}
        for outputs, inputs, form, tokens, *fields in json.loads(file.read_bytes()):
            tuning = SkinnyTuning(*fields) if fields else None
            if tuning is not None and most_bytes is not None:
                size = tuning.bytes(tokens, form == "gated", itemsize)
                tuning = tuning if size <= most_bytes else None
            measured[outputs, inputs, form, tokens] = tuning
        return cls(measured)

    def tuning(self, key: SkinnyKey) -> SkinnyTuning | None:
        """Return the kernel's tuning for a layer; None where cuBLAS computes it."""
        if key not in self._known:
            self._known[key] = self._nearest(key)
        return self._known[key]

    def _nearest(self, key: SkinnyKey) -> SkinnyTuning | None:
        outputs, inputs, form, _ = key
        ranked = sorted(
            (away, at)
            for at in self.measured
            if at[2:] == key[2:] and (away := distance(at[:2], key[:2])) <= MAX_DISTANCE
        )
        for _, at in ranked:
            tuning = self.measured[at]
            if tuning is None or fits(outputs // (2 if form == "gated" else 1), inputs, tuning):
                return tuning
        return None


def distance(one: Sequence[int], other: Sequence[int]) -> float:
    """Return how unlike two layers are that begin with outputs and inputs: 0 for the same."""
    return sum(abs(math.log2(one[at] / other[at])) for at in (0, 1))


def bucket(tokens: int) -> int:
    """The number of tokens that was measured for `tokens`."""
    return 1 if tokens == 1 else max(8, 1 << (tokens - 1).bit_length())


@cache
def _table(device: torch.device, prefix: str = "", itemsize: int = 2) -> SkinnyTable:
    kind, name = gpu_kind(device), torch.cuda.get_device_name(device)
    file = nearest(Path(__file__).parent.glob(f"{prefix}skinny-*.json"), kind)
    if file is None:
        log.info(
            "GEMMs of few tokens were measured on no GPU like %s (%s): cuBLAS computes them.",
            name,
            kind,
        )
        return SkinnyTable({})
    if not kind.is_like(parsed(file.name)):
        log.info("GEMMs of few tokens on %s (%s): as measured on %s.", name, kind, file.stem)
    return SkinnyTable.read(file, program_bytes(device), itemsize=itemsize)


def skinny_gemm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, gate: Gate | None = None
) -> torch.Tensor | None:
    """`skinny_linear` where it was measured to be faster, else None."""
    tuning = _tuning(x, weight, "plain" if gate is None else "gated")
    return None if tuning is None else skinny_linear(x, weight, bias, tuning, gate=gate)


def skinny_parts(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor | None:
    """`skinny_parts_of` where it was measured to be faster together with a norm after it, else
    None."""
    tuning = _tuning(x, weight, "parts")
    return None if tuning is None else skinny_parts_of(x, weight, bias, tuning)


def _tuning(x: torch.Tensor, weight: torch.Tensor, form: Form) -> SkinnyTuning | None:
    if x.dtype not in _HALF_DTYPES or x.stride(1) != 1:
        return None
    return _measured(len(x), weight, form)


def fp8_tuning(tokens: int, weight: torch.Tensor, form: Form) -> SkinnyTuning | None:
    """Return the kernel's tuning for a float8 weight [out, in]; None where cuBLAS is faster."""
    return _measured(tokens, weight, form, "fp8-")


def _measured(
    tokens: int, weight: torch.Tensor, form: Form, prefix: str = ""
) -> SkinnyTuning | None:
    if not 0 < tokens <= MAX_SKINNY_TOKENS:
        return None
    table = _table(weight.device, prefix, weight.itemsize)
    return table.tuning((weight.shape[0], weight.shape[1], form, bucket(tokens)))
