"""Numbers of 4 bits as floating-point ones, by their bits: to convert integers is slow."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decoded(words, NIBBLE: tl.constexpr):
    """1 + n / 16 in fp32 for nibble n of each word: the bits of 1, with n as the highest of the
    fraction's."""
    place: tl.constexpr = 19
    at: tl.constexpr = 4 * NIBBLE
    moved = words << (place - at) if at < place else words >> (at - place)
    bits = (moved & (15 << place)) | 0x3F800000
    return bits.to(tl.float32, bitcast=True)


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
