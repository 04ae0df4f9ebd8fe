"""Products with weights in 4 bits, decoded into the registers from which tensor cores take them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.tile_memory import tile_bytes
from kvasir_engine.kernels.int4.int4_decoding import decoded, scales_of, zero_points
from kvasir_engine.kernels.int4.int4_weights import UNIT, WORDS

_UNIT, _WORDS = tl.constexpr(UNIT), tl.constexpr(WORDS)
_NIBBLES = tl.constexpr(UNIT // WORDS)


@triton.jit
def _unit_products(
    words, x_ptrs, given, k, k_size, scale_ptr, zero_ptr, scale, zero, at, columns,
    N: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, ASYMMETRIC: tl.constexpr,
    EVEN: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """[N, ROWS] fp32 products of one unit, inputs k and on; `scale`, `zero` [N]: its first group's,
    which stand `at`."""
    dtype: tl.constexpr = x_ptrs.dtype.element_ty
    nibbles: tl.constexpr = _NIBBLES // GROUPS
    word = tl.arange(0, _WORDS)
    total = tl.zeros([N, ROWS], tl.float32)
    for group in tl.static_range(GROUPS):
        if group > 0:
            zero = zero_points(zero_ptr, at + group * columns, ASYMMETRIC)
            scale = scales_of(scale_ptr, at + group * columns)
        acc = tl.zeros([N, ROWS], tl.float32)
        for each in tl.static_range(nibbles):
            inputs = k + (group * nibbles + each) * _WORDS
            mask = given
            if not EVEN:
                mask = given & (inputs + word < k_size)[:, None]
            x = tl.load(x_ptrs + inputs, mask=mask, other=0.0)
            weights = decoded(words, zero[:, None], group * nibbles + each, dtype, PTX)
            acc = tl.dot(weights, x, acc, input_precision="ieee")
        total += acc * scale[:, None]
    return total


@triton.jit
def int4_products(
    w_ptr, n, x_ptrs, given, k_size, first, end, scale_ptr, zero_ptr, columns, units_of_group,
    N: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, GROUPS: tl.constexpr,
    ASYMMETRIC: tl.constexpr, EVEN: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """[N, ROWS] fp32 products of outputs n [N] and rows over units first .. end.

    x_ptrs [WORDS, ROWS]: the rows' first inputs, of those that are `given`. A group has `columns`
    scales; a unit has `GROUPS` groups, or a group units.
    """
    word = tl.arange(0, _WORDS)
    row_words = tl.cdiv(k_size, _UNIT) * _WORDS
    w_ptrs = w_ptr + n.to(tl.int64)[:, None] * row_words + word[None, :]
    acc = tl.zeros([N, ROWS], tl.float32)
    # A unit's scales are asked for one unit ahead: they are too small for copies that run ahead.
    at = (tl.minimum(first, end - 1) // units_of_group * GROUPS).to(tl.int64) * columns + n
    at = tl.maximum(at, n)
    scale, zero = scales_of(scale_ptr, at), zero_points(zero_ptr, at, ASYMMETRIC)
    for unit in tl.range(first, end, num_stages=STAGES):
        ahead = tl.minimum(unit + 1, end - 1) // units_of_group * GROUPS
        next_at = ahead.to(tl.int64) * columns + n
        next_scale = scales_of(scale_ptr, next_at)
        next_zero = zero_points(zero_ptr, next_at, ASYMMETRIC)
        k = unit * _UNIT
        words = tl.load(w_ptrs + unit * _WORDS, eviction_policy="evict_first")
        acc += _unit_products(
            words, x_ptrs, given, k, k_size, scale_ptr, zero_ptr, scale, zero, at, columns, N, ROWS,
            GROUPS, ASYMMETRIC, EVEN, PTX,
        )  # fmt: skip
        scale, zero, at = next_scale, next_zero, next_at
    return acc


def fitted_stages(stages: int, outputs: int, x: torch.Tensor, rows: int) -> int:
    """Return `stages`, or fewer where the units of so many outputs and rows of x that are on their
    way at once would not fit the shared memory."""
    bytes_of_stage = 4 * WORDS * outputs + x.element_size() * UNIT * rows
    return max(1, min(stages, tile_bytes(x.device) // bytes_of_stage))
