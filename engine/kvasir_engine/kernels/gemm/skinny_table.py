"""Layers of few tokens that the skinny kernel computes, and its tuning: measured, never guessed.

The tables beside this file are written by benchmarks/gpu/skinny_gemm.py, one for each kind of GPU;
a GPU without one takes that of the most similar kind of its compute capability, as far as tiles fit
its shared memory. A line is (outputs, inputs, gated, tokens, and SkinnyTuning's fields); cuBLAS
computes every other layer.
"""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path

import torch

from kvasir_engine.device.gpu_kind import gpu_kind, nearest, parsed
from kvasir_engine.device.tile_memory import program_bytes
from kvasir_engine.kernels.gemm.skinny import MAX_SKINNY_TOKENS, SkinnyTuning, fits, skinny_linear

log = logging.getLogger(__name__)

SkinnyKey = tuple[int, int, bool, int]
_HALF_DTYPES = (torch.bfloat16, torch.float16)


def bucket(tokens: int) -> int:
    """The number of tokens that was measured for `tokens`."""
    return 1 if tokens == 1 else max(8, 1 << (tokens - 1).bit_length())


def read_table(file: Path) -> dict[SkinnyKey, SkinnyTuning]:
    """A table's tunings by (outputs, inputs, gated, tokens)."""
    found = {}
    for outputs, inputs, gated, tokens, *fields in json.loads(file.read_bytes()):
        tuning = SkinnyTuning(*fields)
        if fits(outputs // (2 if gated else 1), inputs, tuning):
            found[outputs, inputs, gated, tokens] = tuning
    return found


@cache
def _table(device: torch.device) -> dict[SkinnyKey, SkinnyTuning]:
    kind, name = gpu_kind(device), torch.cuda.get_device_name(device)
    file = nearest(Path(__file__).parent.glob("skinny-*.json"), kind)
    if file is None:
        log.info(
            "GEMMs of few tokens were measured on no GPU like %s (%s): cuBLAS computes them.",
            name,
            kind,
        )
        return {}
    if parsed(file.name) != kind:
        log.info("GEMMs of few tokens on %s (%s): as measured on %s.", name, kind, file.stem)
    most = program_bytes(device)
    found = read_table(file)
    return {key: tuning for key, tuning in found.items() if tuning.bytes(key[3], key[2]) <= most}


def skinny_gemm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, gated: bool = False
) -> torch.Tensor | None:
    """`skinny_linear` where it was measured to be faster, else None."""
    tokens = x.shape[0]
    if not 0 < tokens <= MAX_SKINNY_TOKENS or x.dtype not in _HALF_DTYPES or x.stride(1) != 1:
        return None
    tuning = _table(x.device).get((weight.shape[0], weight.shape[1], gated, bucket(tokens)))
    return None if tuning is None else skinny_linear(x, weight, bias, tuning, gated=gated)
