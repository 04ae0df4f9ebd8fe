"""Products with weights in 4 bits on a GPU against those of the dequantised numbers in float64, for
`quantized.py`: every kernel, group and number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from support.engines.int4_checkpoints import Rounding, random_int4

from kvasir_engine.kernels.expert_routing import make_expert_blocks
from kvasir_engine.kernels.gemm.skinny import SkinnyTuning
from kvasir_engine.kernels.grouped_gemm import moe_tuning_for
from kvasir_engine.kernels.int4 import int4_linear
from kvasir_engine.kernels.int4.int4_dequantize import dequantized
from kvasir_engine.kernels.int4.int4_grouped_gemm import int4_grouped_gemm
from kvasir_engine.kernels.int4.int4_skinny import skinny_int4_parts_of

DEVICE = torch.device("cuda")
TOKENS = (1, 2, 8, 9, 16, 17, 40, 64)
ROUNDINGS = (
    Rounding(128),
    Rounding(128, symmetric=True),
    Rounding(64),
    Rounding(32),
    Rounding(-1, symmetric=True),
)
SHAPES = ((6144, 4096), (4096, 14336), (256, 512), (80, 96))
"""Outputs and inputs."""
DTYPES = (torch.bfloat16, torch.float16)
PARTS = SkinnyTuning(32, 128, 2, 4, parts=3)


def products_in_4_bits() -> Iterator[tuple[str, float]]:
    """(what, error) of each product and matrix."""
    for dtype in DTYPES:
        for outputs, inputs in SHAPES:
            for how in ROUNDINGS if outputs == SHAPES[0][0] else ROUNDINGS[:1]:
                name = f"{dtype} {how.group} {'' if how.symmetric else 'a'}symmetric"
                yield from _of_one(f"{name} {inputs} -> {outputs}", dtype, outputs, inputs, how)


def _of_one(
    name: str, dtype: torch.dtype, outputs: int, inputs: int, how: Rounding
) -> Iterator[tuple[str, float]]:
    weight, matrix = random_int4(outputs, inputs, how, device=DEVICE, dtype=dtype)
    wide = matrix.to(DEVICE).double()
    bias = torch.randn(outputs, device=DEVICE, dtype=dtype)
    yield f"{name} matrix", off(dequantized(weight, inputs), wide)
    for tokens in TOKENS:
        x = torch.randn(tokens, inputs, device=DEVICE, dtype=dtype)
        want = x.double() @ wide.t() + bias
        got = int4_linear.int4_linear(x, weight, bias)
        yield f"{name} {tokens} tokens", off(got, want)
        parts: Any = skinny_int4_parts_of(x, weight, bias, PARTS)
        yield f"{name} {tokens} tokens in parts", off(parts.sum(0), want)
        out: Any = int4_linear.int4_gated(x, weight, bias, "silu")
        first, second = want.to(dtype).chunk(2, dim=-1)
        yield f"{name} {tokens} tokens gated", off(out, torch.nn.functional.silu(first) * second)


def experts_in_4_bits() -> Iterator[tuple[str, float]]:
    """(what, error) of products of experts."""
    count, top_k, inputs, outputs = 8, 2, 256, 384
    for how in ROUNDINGS:
        weight, matrix = random_int4(
            count * outputs, inputs, how, device=DEVICE, dtype=torch.bfloat16
        )
        matrices = matrix.to(DEVICE).double().view(count, outputs, inputs)
        for tokens in (1, 30, 500, 2000):
            x = torch.randn(tokens, inputs, device=DEVICE, dtype=torch.bfloat16)
            drawn = [torch.randperm(count, device=DEVICE)[:top_k] for _ in range(tokens)]
            chosen = torch.stack(drawn)
            tuning = moe_tuning_for(chosen.numel(), count, x.element_size())
            blocks = make_expert_blocks(chosen.int(), count, tuning.rows)
            got = int4_grouped_gemm(x, weight, blocks, tuning, experts=count, top_k=top_k)
            each = x.double().repeat_interleave(top_k, 0)
            want = torch.einsum("ti,toi->to", each, matrices[chosen.flatten().long()])
            name = f"{tokens} tokens of experts in 4 bits, groups of {how.group}"
            yield name, off(got, want[blocks.order.long()])


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the relative error of the whole."""
    return float((got.double() - want.double()).norm() / want.double().norm())
