"""A program's product with a matrix in MXFP4 (`quantization/mxfp4.py` says how it lies in memory).

Numbers are multiplied in the inputs' type, which has each of them exactly: float4 times a power of
two.
"""

from __future__ import annotations

import triton
import triton.language as tl

GROUP = tl.constexpr(32)
"""Inputs that share a scale: eight words of 16 bits, of which word j has numbers j, j + 8, j + 16
and j + 24. Their bits lie so that few instructions take them apart."""

_UNPACK = tl.constexpr(
    """{
    .reg .b32 t, u, none;
    mov.b32 none, 0x80008000;
    and.b32 t, $4, 0x81C081C0;
    fma.rn.bf16x2 $0, t, $5, none;
    shl.b32 t, $4, 3;
    and.b32 t, t, 0x81C081C0;
    fma.rn.bf16x2 $1, t, $5, none;
    shl.b32 t, $4, 6;
    and.b32 t, t, 0x81C081C0;
    fma.rn.bf16x2 $2, t, $5, none;
    shl.b32 t, $4, 1;
    and.b32 t, t, 0x80008000;
    shr.b32 u, $4, 5;
    lop3.b32 t, u, 0x01000100, t, 0xEA;
    shr.b32 u, $4, 4;
    lop3.b32 t, u, 0x00C000C0, t, 0xEA;
    fma.rn.bf16x2 $3, t, $5, none;
    }"""
)
"""Two words to four times two bfloat16. Sign, exponent and mantissa of a number are put where
bfloat16 has the sign, the last two bits of its exponent and the first one of its mantissa: that is
the number times 2**-126, zero and subnormals included, which the product with a factor of the scale
makes up for."""
FAST_SHARE = tl.constexpr(2.0**-64)
"""Share of themselves that products have where numbers are unpacked by these instructions: bfloat16
has their factors and numbers exactly then for scales from 2**-68 to 2**64."""


@triton.jit
def _value(sign, size):
    """fp32 of numbers whose last bit of `sign` and last three bits of `size` are float4."""
    size = size & 7
    twice = tl.where(size < 4, size, (2 + (size & 1)) << (tl.maximum(size >> 1, 1) - 1))
    value = twice.to(tl.float32) * 0.5
    return tl.where((sign & 1) != 0, -value, value)


@triton.jit
def _each_word(scales, GROUPS: tl.constexpr, BN: tl.constexpr):
    """[GROUPS, BN] as [words of the groups, BN]."""
    spread = tl.broadcast_to(scales[:, None, :], [GROUPS, 8, BN])
    return tl.reshape(spread, [GROUPS * 8, BN])


@triton.jit
def _unpack(words, scales, dtype, GROUPS: tl.constexpr, BN: tl.constexpr, FAST: tl.constexpr):
    """The four numbers of each of words [words of GROUPS groups, BN], times the scales
    [GROUPS, BN]."""
    if FAST:
        # 2**(scale - 127) * 2**126 * FAST_SHARE, put together of bfloat16's bits.
        factors = ((scales.to(tl.int16) + 62) << 7).to(tl.bfloat16, bitcast=True)
        first, second, third, fourth = tl.inline_asm_elementwise(
            _UNPACK,
            "=r,=r,=r,=r,r,r",
            [words, _each_word(factors, GROUPS, BN)],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        factors = _each_word(tl.exp2(scales.to(tl.float32) - 127.0), GROUPS, BN)
        bits = words.to(tl.int32)
        first = (_value(bits >> 15, bits >> 6) * factors).to(dtype)
        second = (_value(bits >> 12, bits >> 3) * factors).to(dtype)
        third = (_value(bits >> 9, bits) * factors).to(dtype)
        size = (bits >> 11 & 4) | (bits >> 10 & 3)
        fourth = (_value(bits >> 14, size) * factors).to(dtype)
    return first, second, third, fourth


@triton.jit
def mxfp4_tile(
    acc, x0, x1, x2, x3, w_ptr, scale_ptr, start, groups, n, n_size, inside,
    GROUPS: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """acc [BM, BN] plus the product of GROUPS groups of inputs, from group `start` of `groups` on,
    with outputs n [BN] of a matrix of n_size; where FAST, FAST_SHARE of it.

    x0 to x3 [BM, 8 GROUPS]: of each group the first eight inputs, and the next ones.
    """
    group, word = tl.arange(0, GROUPS), tl.arange(0, GROUPS * 8)
    group_of = word // 8
    w_group, w_word = start + group_of, word - group_of * 8
    w_mask, s_mask = inside[None, :], inside[None, :]
    if not EVEN:
        w_mask &= (w_group < groups)[:, None]
        s_mask &= (start + group < groups)[:, None]
    at = (w_group[:, None] * n_size + n[None, :]) * 8 + w_word[:, None]
    words = tl.load(w_ptr + at, mask=w_mask, other=0)
    scale_at = (start + group)[:, None] * n_size + n[None, :]
    scales = tl.load(scale_ptr + scale_at, mask=s_mask, other=0)
    w0, w1, w2, w3 = _unpack(words, scales, x0.dtype, GROUPS, BN, FAST)
    acc = tl.dot(x0, w0, acc, input_precision="ieee")
    acc = tl.dot(x1, w1, acc, input_precision="ieee")
    acc = tl.dot(x2, w2, acc, input_precision="ieee")
    return tl.dot(x3, w3, acc, input_precision="ieee")
