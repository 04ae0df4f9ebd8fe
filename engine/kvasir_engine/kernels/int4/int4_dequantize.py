"""Weights of 4 bits as a whole matrix, for products of many tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.kernels.int4.int4_decoding import decoded, scales_of, zero_points
from kvasir_engine.kernels.int4.int4_weights import UNIT, WORDS, Int4Weight, units_of

_UNIT, _WORDS = tl.constexpr(UNIT), tl.constexpr(WORDS)
_NIBBLES = tl.constexpr(UNIT // WORDS)
_OUTPUTS = 64
"""Outputs of a program, each with one unit of inputs."""


@triton.jit
def _dequantize_int4(
    w_ptr, scale_ptr, zero_ptr, out_ptr, n_size, k_size, units_of_group,
    BN: tl.constexpr, GROUPS: tl.constexpr, ASYMMETRIC: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    outputs = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = outputs < n_size
    n = tl.minimum(outputs, n_size - 1)
    unit, word = tl.program_id(0), tl.arange(0, _WORDS)
    row_words = tl.cdiv(k_size, _UNIT) * _WORDS
    begin(PDL)
    words = tl.load(w_ptr + n.to(tl.int64)[:, None] * row_words + unit * _WORDS + word[None, :])
    group = (unit // units_of_group * GROUPS).to(tl.int64)
    row = out_ptr + n.to(tl.int64)[:, None] * k_size
    for nibble in tl.static_range(_NIBBLES):
        at = (group + nibble // (_NIBBLES // GROUPS)) * n_size + n
        zero = zero_points(zero_ptr, at, ASYMMETRIC)[:, None]
        weights = decoded(words, zero, nibble, tl.float32, False)
        weights *= scales_of(scale_ptr, at)[:, None]
        inputs = unit * _UNIT + nibble * _WORDS + word
        mask = inside[:, None] & (inputs < k_size)[None, :]
        tl.store(row + inputs[None, :], weights.to(out_ptr.dtype.element_ty), mask=mask)


def dequantized(weight: Int4Weight, inputs: int) -> torch.Tensor:
    """Return the matrix [outputs, inputs] in the scales' type."""
    outputs = len(weight.words)
    dtype, device = weight.scales.dtype, weight.words.device
    out = torch.empty((outputs, inputs), dtype=dtype, device=device)
    _dequantize_int4[(units_of(inputs), triton.cdiv(outputs, _OUTPUTS))](
        weight.words,
        weight.scales,
        weight.words if weight.zeros is None else weight.zeros,
        out,
        outputs,
        inputs,
        max(1, weight.group // UNIT),
        BN=_OUTPUTS,
        GROUPS=max(1, UNIT // weight.group),
        ASYMMETRIC=weight.zeros is not None,
        num_warps=4,
        **launch_options(device),
    )
    return out
