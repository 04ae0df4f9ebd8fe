"""Numbers of 4 bits as floating-point ones, by their bits: to convert integers is slow."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decoded(words, zero, NIBBLE: tl.constexpr, dtype: tl.constexpr, PTX: tl.constexpr):
    """(n - z) / 16 in `dtype`, exactly, for nibble n of each word and 1 + z / 16 in fp32."""
    if PTX and dtype != tl.float32:
        less = (-zero).to(dtype)
        return tl.inline_asm_elementwise(
            pair_asm(NIBBLE, dtype == tl.bfloat16),
            "=r,r,r,r",
            [words, less],
            dtype=less.dtype,
            is_pure=True,
            pack=2,
        )
    # The bits of 1, with n as the highest of the fraction's.
    place: tl.constexpr = 19
    at: tl.constexpr = 4 * NIBBLE
    moved = words << (place - at) if at < place else words >> (at - place)
    bits = (moved & (15 << place)) | 0x3F800000
    return (bits.to(tl.float32, bitcast=True) - zero).to(dtype)


@triton.constexpr_function
def pair_asm(nibble: int, bfloat16: bool) -> str:
    """PTX that makes of two words $1 and $2 their numbers, a pair of 16 bits each, and adds $3.

    Half of each word is put beside the other's, so that one instruction moves both numbers to the
    highest places of a fraction, another masks them and gives them the exponent of 1.
    """
    fraction, kind, one = (7, "bf16x2", 0x3F803F80) if bfloat16 else (10, "f16x2", 0x3C003C00)
    place, at = fraction - 4, 4 * (nibble % 4)
    halves = 0x5410 if nibble < 4 else 0x7632
    move = f"shl.b32 n, n, {place - at};" if at < place else f"shr.u32 n, n, {at - place};"
    return f"""{{
        .reg .b32 n, one, mask;
        mov.b32 one, {one};
        mov.b32 mask, {0x000F000F << place};
        prmt.b32 n, $1, $2, {halves};
        {move}
        lop3.b32 n, n, mask, one, 0xEA;
        fma.rn.{kind} $0, n, one, $3;
    }}"""


@triton.jit
def zero_points(zero_ptr, at, ASYMMETRIC: tl.constexpr):
    """1 + z / 16 in fp32 for the zero points z at these places; all are 8 unless `ASYMMETRIC`."""
    if ASYMMETRIC:
        zero = 1.0 + tl.load(zero_ptr + at).to(tl.float32) * 0.0625
    else:
        zero = tl.full(at.shape, 1.5, tl.float32)
    return zero


@triton.jit
def scales_of(scale_ptr, at):
    """Scales in fp32 of sixteenths, which `decoded` numbers are."""
    return tl.load(scale_ptr + at).to(tl.float32) * 16.0
