"""Ways to launch the skinny kernel that `skinny_gemm.py` times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvasir_engine.kernels.gemm.skinny import SkinnyTuning
from kvasir_engine.kernels.gemm.skinny_table import Form

AHEAD, OTHERS_AHEAD = 256, (0, 512, 1024)
"""Inputs asked for ahead: at first, and with the best that were found so."""
BY_PRODUCT = [
    *[SkinnyTuning(16, k, w, s) for k, w, s in ((128, 1, 4), (256, 1, 4), (256, 2, 4))],
    *[SkinnyTuning(16, k, w, s) for k, w, s in ((512, 2, 3), (256, 4, 3), (128, 4, 6))],
    *[SkinnyTuning(32, k, w, s) for k, w, s in ((128, 2, 4), (256, 2, 3), (256, 4, 3))],
    *[SkinnyTuning(64, k, w, s) for k, w, s in ((64, 4, 4), (128, 4, 4), (128, 4, 3))],
    *[SkinnyTuning(128, k, w, s) for k, w, s in ((64, 4, 4), (128, 4, 3))],
    *[SkinnyTuning(32, k, w, s) for k, w, s in ((256, 4, 4), (512, 4, 3))],
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((64, 256, 4, 3), (16, 256, 2, 3))],
    *[SkinnyTuning(64, k, w, s) for k, w, s in ((64, 4, 8), (128, 4, 5))],
]
BY_SUMS = [
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((4, 1024, 4, 2), (8, 512, 4, 2))],
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((16, 256, 4, 2), (16, 512, 8, 2))],
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((8, 512, 4, 4), (4, 512, 2, 4))],
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((2, 1024, 2, 4), (16, 256, 4, 4))],
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((8, 1024, 8, 2), (4, 1024, 4, 1))],
    SkinnyTuning(8, 256, 2, 4),
]


IN_PARTS = [
    SkinnyTuning(n, k, w, s, 256, parts)
    for n, k, w, s in (
        *((64, 64, 4, 8), (64, 128, 4, 5), (64, 128, 4, 4), (128, 128, 8, 3)),
        *((32, 128, 4, 4), (32, 256, 4, 3), (16, 256, 2, 3), (16, 512, 2, 3)),
    )
    for parts in (2, 3, 4, 5, 6, 8)
]
SUMS_IN_PARTS = [
    SkinnyTuning(n, k, w, s, 256, parts)
    for n, k, w, s in ((8, 512, 4, 2), (4, 512, 2, 4), (8, 256, 2, 4), (16, 256, 4, 4))
    for parts in (2, 3, 4)
]
FP8_BY_PRODUCT = [
    *[SkinnyTuning(64, 256, w, s) for w, s in ((4, 3), (4, 4), (4, 5), (8, 4), (8, 5))],
    *[SkinnyTuning(64, 128, w, s) for w, s in ((4, 4), (4, 5))],
    *[SkinnyTuning(32, k, w, s) for k, w, s in ((512, 4, 3), (512, 4, 5), (256, 4, 4))],
    *[SkinnyTuning(n, k, w, s) for n, k, w, s in ((16, 256, 2, 5), (16, 512, 4, 4))],
    *[SkinnyTuning(128, 128, w, s) for w, s in ((4, 5), (8, 4))],
]
FP8_BY_SUMS = [
    *[SkinnyTuning(4, 1024, w, s) for w, s in ((2, 3), (2, 4), (4, 3))],
    *[SkinnyTuning(8, 1024, w, s) for w, s in ((4, 3), (4, 4), (8, 3))],
    *[SkinnyTuning(n, 512, w, s) for n, w, s in ((8, 2, 3), (16, 4, 3), (16, 4, 4))],
]
MOST_PROGRAMS = 4 * 132
"""With parts: more only add parts to sum."""


def tunings(tokens: int, form: Form, kind: str = "bf16") -> list[SkinnyTuning]:
    """Return the tunings to try for that number of tokens, of weights of that format."""
    if kind == "fp8":
        tried = FP8_BY_SUMS if tokens == 1 else FP8_BY_PRODUCT
        many = (2, 3, 4, 6) if form == "parts" else (1,)
        return [replace(each, parts=parts) for each in tried for parts in many]
    if form == "parts":
        return SUMS_IN_PARTS if tokens == 1 else IN_PARTS
    return BY_SUMS + BY_PRODUCT if tokens == 1 else BY_PRODUCT


def ahead(tried: Sequence[SkinnyTuning], *inputs: int) -> list[SkinnyTuning]:
    """Return each tuning with each number of inputs asked for ahead."""
    return [replace(each, prefetched=many) for each in tried for many in inputs]
