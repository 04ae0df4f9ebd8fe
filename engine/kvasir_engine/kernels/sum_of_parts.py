"""Sums that several programs of the kernel before have found parts of."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_of_parts(at, mask, step, PARTS: tl.constexpr):
    """fp32 numbers at pointers `at`, or the sums of as many parts of them, `step` numbers apart."""
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        x += tl.load(at + part * step, mask=mask, other=0.0)
    return x
