"""A program's product with a matrix in MXFP4 (`quantization/mxfp4.py` says how it lies in memory).

Numbers are multiplied in the inputs' type, which has each of them exactly: float4 times a power of
two.
"""

from __future__ import annotations

import triton
import triton.language as tl

GROUP = tl.constexpr(32)
"""Inputs that share a scale: 16 bytes, with number i in a low half and number i + 16 in the high
half beside it."""

_UNPACK = tl.constexpr(
    """{
    .reg .b32 ab, cd, t, none;
    mov.b32 none, 0x80008000;
    prmt.b32 ab, $4, 0, 0x1404;
    prmt.b32 cd, $4, 0, 0x3424;
    shr.b32 t, ab, 6;
    and.b32 t, t, 0x01C001C0;
    lop3.b32 t, ab, 0x80008000, t, 0xEA;
    fma.rn.bf16x2 $2, t, $5, none;
    shr.b32 t, cd, 6;
    and.b32 t, t, 0x01C001C0;
    lop3.b32 t, cd, 0x80008000, t, 0xEA;
    fma.rn.bf16x2 $3, t, $6, none;
    shl.b32 ab, ab, 4;
    shl.b32 cd, cd, 4;
    shr.b32 t, ab, 6;
    and.b32 t, t, 0x01C001C0;
    lop3.b32 t, ab, 0x80008000, t, 0xEA;
    fma.rn.bf16x2 $0, t, $5, none;
    shr.b32 t, cd, 6;
    and.b32 t, t, 0x01C001C0;
    lop3.b32 t, cd, 0x80008000, t, 0xEA;
    fma.rn.bf16x2 $1, t, $6, none;
    }"""
)
"""Four bytes to two times four bfloat16. Sign, exponent and mantissa of a number are put where
bfloat16 has the sign, the last two bits of its exponent and the first one of its mantissa: that is
the number times 2**-126, zero and subnormals included, which the product with a factor of the scale
makes up for."""
FAST_SHARE = tl.constexpr(2.0**-64)
"""Share of themselves that products have where numbers are unpacked by these instructions: bfloat16
has their factors and numbers exactly then for scales from 2**-68 to 2**64."""


@triton.jit
def _value(code):
    """fp32 of numbers whose last four bits are float4."""
    size = code & 7
    twice = tl.where(size < 4, size, (2 + (size & 1)) << (tl.maximum(size >> 1, 1) - 1))
    value = twice.to(tl.float32) * 0.5
    return tl.where((code & 8) != 0, -value, value)


@triton.jit
def _each_byte(scales, GROUPS: tl.constexpr, BN: tl.constexpr):
    """[GROUPS, BN] as [bytes of the groups, BN]."""
    spread = tl.broadcast_to(scales[:, None, :], [GROUPS, 16, BN])
    return tl.reshape(spread, [GROUPS * 16, BN])


@triton.jit
def _unpack(packed, scales, dtype, GROUPS: tl.constexpr, BN: tl.constexpr, FAST: tl.constexpr):
    """Numbers in the low and in the high halves of bytes [bytes of GROUPS groups, BN], times the
    scales [GROUPS, BN]."""
    if FAST:
        # 2**(scale - 127) * 2**126 * FAST_SHARE, put together of bfloat16's bits.
        factors = ((scales.to(tl.int16) + 62) << 7).to(tl.bfloat16, bitcast=True)
        low, high = tl.inline_asm_elementwise(
            _UNPACK,
            "=r,=r,=r,=r,r,r,r",
            [packed, _each_byte(factors, GROUPS, BN)],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        factors = _each_byte(tl.exp2(scales.to(tl.float32) - 127.0), GROUPS, BN)
        code = packed.to(tl.int32)
        low = (_value(code) * factors).to(dtype)
        high = (_value(code >> 4) * factors).to(dtype)
    return low, high


@triton.jit
def mxfp4_tile(
    acc, x_low, x_high, w_ptr, scale_ptr, start, groups, n, n_size, inside,
    GROUPS: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """acc [BM, BN] plus the product of GROUPS groups of inputs, from group `start` of `groups` on,
    with outputs n [BN] of a matrix of n_size; where FAST, FAST_SHARE of it.

    x_low, x_high [BM, 16 GROUPS]: of each group the first half of the inputs and the second one.
    """
    group, byte = tl.arange(0, GROUPS), tl.arange(0, GROUPS * 16)
    group_of = byte // 16
    w_group, w_byte = start + group_of, group_of * 16
    w_mask, s_mask = inside[None, :], inside[None, :]
    if not EVEN:
        w_mask &= (w_group < groups)[:, None]
        s_mask &= (start + group < groups)[:, None]
    at = (w_group[:, None] * n_size + n[None, :]) * 16 + (byte - w_byte)[:, None]
    packed = tl.load(w_ptr + at, mask=w_mask, other=0)
    scale_at = (start + group)[:, None] * n_size + n[None, :]
    scales = tl.load(scale_ptr + scale_at, mask=s_mask, other=0)
    low, high = _unpack(packed, scales, x_low.dtype, GROUPS, BN, FAST)
    acc = tl.dot(x_low, low, acc, input_precision="ieee")
    return tl.dot(x_high, high, acc, input_precision="ieee")
