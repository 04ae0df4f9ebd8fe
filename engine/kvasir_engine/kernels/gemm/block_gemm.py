"""Linear layers in float8 with a scale for each block of weights and group of inputs (DeepSeek-V3,
arXiv:2412.19437, section 3.3).

Products of one group are summed by tensor cores and its scales multiplied in fp32, which also
bounds how many products they sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import nn

from kvasir_engine.device.capability import supports_hopper
from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.device.tile_memory import tile_bytes
from kvasir_engine.kernels.gemm.skinny import SkinnyTuning, fits, skinny_fp8_linear
from kvasir_engine.kernels.grouped_gemm import GemmTuning
from kvasir_engine.kernels.quantized_rows import GROUP, QuantizedRows

# Measured on an H100 for the layers of Llama-8B: tiles of other shapes, also of 128 tokens, and the
# skinny kernel beyond few tokens are slower.
TILES = GemmTuning(64, 128, GROUP, 4, 4)
ONE_TOKEN = SkinnyTuning(16, GROUP, 1, 8, prefetched=128)
FEW_TOKENS = SkinnyTuning(32, GROUP, 4, 8, prefetched=512)
MAX_FEW_TOKENS = 8
_MULTIPLE = 8
"""Numbers of tokens that are multiples of this are the library's."""


@triton.jit(do_not_specialize=["tokens"])
def _block_gemm(
    x_ptr,
    w_ptr,
    x_scale_ptr,
    w_scale_ptr,
    out_ptr,
    tokens,
    n_size,
    k_size,
    BM: tl.constexpr,
    BN: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    # Programs of the same weights run together.
    rows_of_programs = tl.cdiv(tokens, BM)
    m = tl.program_id(0) % rows_of_programs * BM + tl.arange(0, BM)
    n = tl.program_id(0) // rows_of_programs * BN + tl.arange(0, BN)
    k, groups = tl.arange(0, GROUP), tl.cdiv(k_size, GROUP)
    given, inside = m < tokens, n < n_size
    # Numbers behind the last are the last's, and not stored.
    row = tl.minimum(m, tokens - 1).to(tl.int64)
    output = tl.minimum(n, n_size - 1).to(tl.int64)
    of_w = w_scale_ptr + output // GROUP * groups
    begin(PDL)
    acc = tl.zeros([BM, BN], tl.float32)
    for group in tl.range(0, groups, num_stages=STAGES):
        at = group * GROUP + k
        x = tl.load(
            x_ptr + row[:, None] * k_size + at[None, :], mask=at[None, :] < k_size, other=0.0
        )
        w = tl.load(
            w_ptr + output[None, :] * k_size + at[:, None], mask=at[:, None] < k_size, other=0.0
        )
        scale = tl.load(x_scale_ptr + row * groups + group)[:, None]
        acc += tl.dot(x, w) * (scale * tl.load(of_w + group)[None, :])
    where = out_ptr + m.to(tl.int64)[:, None] * n_size + n[None, :]
    tl.store(where, acc.to(out_ptr.dtype.element_ty), mask=given[:, None] & inside[None, :])


def block_linear(
    x: QuantizedRows,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """x [tokens, in], with scales of groups, times weight [out, in] transposed, with scales of
    blocks [out / GROUP, in / GROUP], plus bias, in `dtype`."""
    tokens = len(x.values)
    tuning = FEW_TOKENS if tokens > 1 else ONE_TOKEN
    if 0 < tokens <= MAX_FEW_TOKENS and fits(weight.shape[0], weight.shape[1], tuning):
        return skinny_fp8_linear(x, weight, scales, bias, tuning, dtype=dtype)
    if tokens and _library_takes(weight):
        out = _by_library(x, weight, scales).to(dtype)
    else:
        out = block_tiles(x, weight, scales, dtype)
    return out if bias is None else out.add_(bias)


def block_tiles(
    x: QuantizedRows, weight: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """`block_linear` of any size by tiles, without a bias."""
    tokens, (outputs, inputs) = len(x.values), weight.shape
    out = torch.empty((tokens, outputs), dtype=dtype, device=x.device)
    if tokens:
        of = TILES.fitted(1, tile_bytes(x.device))
        grid = triton.cdiv(tokens, of.rows) * triton.cdiv(outputs, of.outputs)
        _block_gemm[(grid,)](
            x.values,
            weight,
            x.scales,
            scales,
            out,
            tokens,
            outputs,
            inputs,
            BM=of.rows,
            BN=of.outputs,
            GROUP=GROUP,
            STAGES=of.stages,
            num_warps=of.warps,
            num_stages=of.stages,
            **launch_options(x.device),
        )
    return out


def _library_takes(weight: torch.Tensor) -> bool:
    """True where cuBLASLt has such products: on compute capability 9.0, of whole blocks."""
    # It reads a row's scales four at a time: with 3 groups its numbers were wrong.
    outputs, inputs = weight.shape
    whole = outputs % GROUP == inputs % (4 * GROUP) == 0
    return whole and supports_hopper(weight.device)


def _by_library(x: QuantizedRows, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    tokens = len(x.values)
    if missing := -tokens % _MULTIPLE:
        more = (0, 0, 0, missing)
        values = nn.functional.pad(x.values.view(torch.uint8), more).view(x.values.dtype)
        x = QuantizedRows(values, nn.functional.pad(x.scales, more))
    of_rows = x.scales.t().contiguous().t()
    out = torch._scaled_mm(
        x.values, weight.t(), of_rows, scales.t(), out_dtype=torch.bfloat16, use_fast_accum=False
    )
    return out[:tokens]
