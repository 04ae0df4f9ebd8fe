"""Linear layers in 4 bits: few tokens by the skinny kernel, many by the dequantised matrix.

The matrix is a scratch, freed as soon as it has been multiplied: the largest of a layer is all that
these layers take beside their weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from kvasir_engine.kernels.gemm.skinny import MAX_SKINNY_TOKENS, Gate, SkinnyTuning
from kvasir_engine.kernels.int4.int4_skinny import skinny_int4, skinny_int4_parts_of
from kvasir_engine.kernels.int4.int4_weights import UNIT, Int4Weight, units_of

MAX_FEW_TOKENS = MAX_SKINNY_TOKENS
"""More are multiplied by the dequantised matrix."""
FEW_TOKENS = SkinnyTuning(64, UNIT, 2, 3)
MORE_TOKENS = SkinnyTuning(128, UNIT, 4, 4)
MORE_TOKENS_GATED = SkinnyTuning(256, UNIT, 8, 3)
"""As measured on an H100 (benchmarks/gpu/int4_gemm.py, Llama-3.1-8B's layers). With four warps the
tensor cores of compute capability 9.0 take weights from registers and tokens from shared memory."""
MAX_FEWEST = 16
PROGRAMS = 4.0
PROGRAMS_OF_MORE_TOKENS = 1.5
"""Programs of a multiprocessor from which on sharing outputs gains nothing."""
MIN_PART_UNITS = 4
"""Fewest units of a program that shares its outputs with others."""
MAX_PARTS = 8
_MULTIPROCESSORS = 132
"""Assumed without a GPU."""


def int4_linear(x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """x [tokens, in] times the weight transposed, plus bias [out]; tokens <= MAX_FEW_TOKENS."""
    if not len(x):
        return x.new_empty((0, len(weight.words)))
    return skinny_int4(_by_rows(x), weight, bias, tuning_for(len(x)))


def int4_gated(
    x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None, gate: Gate
) -> torch.Tensor | None:
    """gate(first half of outputs) * second half for up to MAX_FEW_TOKENS tokens, else None."""
    if not 0 < len(x) <= MAX_FEW_TOKENS:
        return None
    tuning = tuning_for(len(x), gated=True)
    return skinny_int4(_by_rows(x), weight, bias, tuning, gate=gate)


def int4_parts(
    x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None
) -> torch.Tensor | None:
    """fp32 [parts, tokens, out], which the next kernel sums, for up to MAX_FEW_TOKENS tokens of
    layers whose outputs alone do not occupy the GPU; else None."""
    if not 0 < len(x) <= MAX_FEW_TOKENS:
        return None
    multiprocessors = _multiprocessors(x.device)
    parts = parts_for(len(weight.words), x.shape[1], len(x), multiprocessors)
    if parts == 1:
        return None
    shared = replace(tuning_for(len(x)), parts=parts)
    return skinny_int4_parts_of(_by_rows(x), weight, bias, shared)


def tuning_for(tokens: int, *, gated: bool = False) -> SkinnyTuning:
    """Return the skinny kernel's tuning, of one part."""
    if tokens <= MAX_FEWEST:
        return FEW_TOKENS
    return MORE_TOKENS_GATED if gated else MORE_TOKENS


def parts_for(outputs: int, inputs: int, tokens: int, multiprocessors: int) -> int:
    """Return how many programs share the inputs of the same outputs, so that they occupy all
    multiprocessors, unless the sums in fp32 that are written and read would be more bytes than the
    weights."""
    each = PROGRAMS if tokens <= MAX_FEWEST else PROGRAMS_OF_MORE_TOKENS
    programs = int(each * multiprocessors)
    wanted = programs // -(-outputs // tuning_for(tokens).outputs)
    light = inputs // (16 * tokens)
    most = max(1, min(wanted, light, units_of(inputs) // MIN_PART_UNITS, MAX_PARTS))
    # A power of two, which divides most layers' inputs evenly.
    return 1 << (most.bit_length() - 1)


def _by_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return _MULTIPROCESSORS
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.multi_processor_count)
