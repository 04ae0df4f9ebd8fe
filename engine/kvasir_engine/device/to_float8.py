"""Rounding to float8 within kernels."""

from __future__ import annotations

import triton
import triton.language as tl

from kvasir_engine.device.float8 import FP8_MAX

_MAX: tl.constexpr = tl.constexpr(FP8_MAX)


@triton.jit
def to_fp8(x, inverse_scale):
    """Return x divided by a scale in float8, the largest number where it is larger."""
    return tl.clamp(x.to(tl.float32) * inverse_scale, -_MAX, _MAX).to(tl.float8e4nv)
