"""Keys and values in float8 (e4m3) as kernels read and write them.

Tensor cores multiply float8 by float8 alone, and queries and weights of keys in float8 would cost
3.5 % of the result, twenty times what float16 costs. Every number of float8 is one of float16, and
the GPU converts two at a time. A tile of bytes, though, cannot be read from shared memory in the
order in which tensor cores take values. Two channels beside each other are therefore read as one
number of 16 bits, which becomes two tiles, of the even channels and of the odd ones: what is summed
over channels is the sum of both, and what is mixed of values comes in two halves.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def as_pairs(cache: torch.Tensor) -> torch.Tensor:
    """Return a float8 cache [..., channels] as int16 [..., channels / 2]."""
    return cache.view(torch.int16)


@triton.constexpr_function
def _channel_asm(odd: bool) -> str:
    """PTX that makes of two pairs $1 their even or odd channels, two numbers of float16."""
    return f"""{{
        .reg .b32 sorted; .reg .b16 even, odd;
        prmt.b32 sorted, $1, $1, 0x3120;
        mov.b32 {{even, odd}}, sorted;
        cvt.rn.f16x2.e4m3x2 $0, {"odd" if odd else "even"};
    }}"""


@triton.jit
def _converted(pairs, ODD: tl.constexpr):
    return tl.inline_asm_elementwise(
        _channel_asm(ODD), "=r,r", [pairs], dtype=tl.float16, is_pure=True, pack=2
    )


@triton.jit
def even_channels(pairs, ASM: tl.constexpr):
    """Return the even channels of int16 pairs in float16. `ASM`: compiled for a GPU."""
    if ASM:
        return _converted(pairs, False)
    return _widened(((pairs & 0x80) << 8) | ((pairs & 0x7F) << 7))


@triton.jit
def odd_channels(pairs, ASM: tl.constexpr):
    """Return the odd channels of int16 pairs in float16. `ASM`: compiled for a GPU."""
    if ASM:
        return _converted(pairs, True)
    return _widened((pairs & -32768) | ((pairs & 0x7F00) >> 1))


@triton.jit
def _widened(bits):
    """Return float16 of float8's sign, exponent and mantissa where float16 has them: exponents of
    float16 are 8 higher."""
    return bits.to(tl.int16).to(tl.float16, bitcast=True) * 256.0
