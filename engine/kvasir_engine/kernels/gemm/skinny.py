"""Linear layers of a few tokens: the weights are read once, at the memory's speed.

cuBLAS leaves about 16 % of an H200's read bandwidth unused at 1 to 8 tokens. Here many small
programs each own a few outputs, with the weights as the rows of the tensor cores' product, and ask
for their first weights while the kernel before still runs. Where outputs are few and inputs many,
several programs share an output's inputs, and the kernel after the layer sums their parts: cuBLAS
has one of its own for that ("split-K"). Which sizes gain is measured
(benchmarks/gpu/skinny_gemm.py) and looked up (`skinny_table.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options, prefetch
from kvasir_engine.kernels.quantized_rows import GROUP, QuantizedRows
from kvasir_engine.kernels.silu_mul import activated

MAX_SKINNY_TOKENS = 64
Gate: TypeAlias = Literal["silu", "gelu_tanh"]
"""Activation of a gated MLP."""


@dataclass(frozen=True, slots=True)
class SkinnyTuning:
    """Launch parameters of the kernel for one shape."""

    outputs: int
    """Outputs of one program."""
    inputs: int
    """Inputs of one iteration."""
    warps: int
    stages: int
    prefetched: int = 512
    """Inputs asked for ahead of the kernel's turn."""
    parts: int = 1
    """Programs that share the inputs of the same outputs."""

    def bytes(self, tokens: int, gated: bool, itemsize: int = 2) -> int:
        """Return the most shared memory that its tiles take, in bytes."""
        if tokens == 1:
            return 0
        matrices = 2 if gated else 1
        return itemsize * self.stages * self.inputs * (matrices * self.outputs + max(16, tokens))


@triton.jit
def _rows_of_weights(
    w_ptr, n, behind, x_ptr, k_size, first, end, tokens, x_stride, x_scale_ptr, w_scale_ptr,
    N: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
    BOTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """[N, ROWS] fp32 products of weight rows n [N] and x's rows, over the inputs from `first` to
    `end`, and, if `BOTH`, of the rows that stand `behind` numbers behind those, in one pass; else
    zeros. With a `GROUP`, so many inputs share a scale, of a row of x and of as many rows of the
    weight; then not `BOTH`."""
    k, row = tl.arange(0, BK), tl.arange(0, ROWS)
    w_ptrs = w_ptr + n.to(tl.int64)[:, None] * k_size + k[None, :]
    if GROUP > 0:
        groups = tl.cdiv(k_size, GROUP)
        of_w = w_scale_ptr + n // GROUP * groups
        of_x = x_scale_ptr + tl.arange(0, ROWS) * groups
        present = tl.arange(0, ROWS) < tokens
    if ROWS == 1:
        sums = tl.zeros([N, BK], tl.float32)
        others = tl.zeros([N, BK], tl.float32)
        for start in tl.range(first, end, BK, num_stages=STAGES):
            w = tl.load(w_ptrs + start, eviction_policy="evict_first")
            x = tl.load(x_ptr + start + k).to(tl.float32)[None, :]
            if GROUP > 0:
                x *= tl.load(of_x + start // GROUP)[:, None]
                sums += w.to(tl.float32) * x * tl.load(of_w + start // GROUP)[:, None]
            else:
                sums += w.to(tl.float32) * x
            if BOTH:
                w = tl.load(w_ptrs + behind + start, eviction_policy="evict_first")
                others += w.to(tl.float32) * x
        acc = tl.sum(sums, 1)[:, None]
        other = tl.sum(others, 1)[:, None]
    else:
        x_ptrs = x_ptr + row[None, :] * x_stride + k[:, None]
        given = (row < tokens)[None, :]
        acc = tl.zeros([N, ROWS], tl.float32)
        other = tl.zeros([N, ROWS], tl.float32)
        for start in tl.range(first, end, BK, num_stages=STAGES):
            w = tl.load(w_ptrs + start, eviction_policy="evict_first")
            x = tl.load(x_ptrs + start, mask=given, other=0.0)
            if GROUP > 0:
                of_rows = tl.load(of_x + start // GROUP, mask=present, other=0.0)[None, :]
                scale = tl.load(of_w + start // GROUP)[:, None] * of_rows
                acc += tl.dot(w, x) * scale
            else:
                acc = tl.dot(w, x, acc, input_precision="ieee")
            if BOTH:
                w = tl.load(w_ptrs + behind + start, eviction_policy="evict_first")
                other = tl.dot(w, x, other, input_precision="ieee")
    return acc, other


@triton.jit
def _scaled(acc, x_scale_ptr, w_scale_ptr, n, tokens, ROWS: tl.constexpr):
    """Products [N, ROWS] of quantised numbers, times the scales of outputs n [N] and of rows."""
    row = tl.arange(0, ROWS)
    of_row = tl.load(x_scale_ptr + row, mask=row < tokens, other=0.0)
    return acc * tl.load(w_scale_ptr + n)[:, None] * of_row[None, :]


@triton.jit(do_not_specialize=["tokens"])
def _skinny(
    x_ptr,
    w_ptr,
    x_scale_ptr,
    w_scale_ptr,
    bias_ptr,
    out_ptr,
    tokens,
    n_size,
    k_size,
    x_stride,
    parts,
    ROWS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
    GATED: tl.constexpr,
    GELU: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    GROUP: tl.constexpr,
    PREFETCHED: tl.constexpr,
    PDL: tl.constexpr,
):
    n = tl.program_id(0) // parts * BN + tl.arange(0, BN)
    part = tl.program_id(0) % parts
    each = tl.cdiv(k_size // BK, parts) * BK
    first = part * each
    end = tl.minimum(first + each, k_size)
    # Of a gate's row, the row it gates.
    behind = n_size.to(tl.int64) * k_size
    if PREFETCHED > 0:
        # A cache line has 128 bytes.
        in_line: tl.constexpr = 1024 // w_ptr.dtype.element_ty.primitive_bitwidth
        ahead = first + tl.arange(0, PREFETCHED // in_line) * in_line
        line = n.to(tl.int64)[:, None] * k_size + ahead[None, :]
        prefetch(w_ptr + line, PDL)
        if GATED:
            prefetch(w_ptr + behind + line, PDL)
    begin(PDL)
    acc, up = _rows_of_weights(
        w_ptr, n, behind, x_ptr, k_size, first, end, tokens, x_stride, x_scale_ptr, w_scale_ptr,
        BN, BK, ROWS, STAGES, GATED, GROUP,
    )  # fmt: skip
    if SCALED:
        acc = _scaled(acc, x_scale_ptr, w_scale_ptr, n, tokens, ROWS)
    if HAS_BIAS and part == 0:
        acc += tl.load(bias_ptr + n).to(tl.float32)[:, None]
    out = acc.to(out_ptr.dtype.element_ty)
    if GATED:
        if SCALED:
            up = _scaled(up, x_scale_ptr, w_scale_ptr + n_size, n, tokens, ROWS)
        if HAS_BIAS:
            up += tl.load(bias_ptr + n_size + n).to(tl.float32)[:, None]
        # Rounded where separate kernels would round.
        gate = activated(out.to(tl.float32), GELU).to(out.dtype)
        out = gate * up.to(out.dtype)
    row = tl.arange(0, ROWS)
    at = (part * tokens + row).to(tl.int64)[None, :] * n_size + n[:, None]
    tl.store(out_ptr + at, out, mask=(row < tokens)[None, :])


def fits(outputs: int, inputs: int, tuning: SkinnyTuning) -> bool:
    """Return True if the kernel, which has no masks along the weights, computes such a layer."""
    each = -(-(inputs // tuning.inputs) // tuning.parts) * tuning.inputs
    # The last part is the shortest.
    shortest = inputs - (tuning.parts - 1) * each
    return (
        outputs % tuning.outputs == 0
        and inputs % tuning.inputs == 0
        and shortest >= max(tuning.prefetched, tuning.inputs)
    )


def skinny_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    tuning: SkinnyTuning,
    *,
    gate: Gate | None = None,
) -> torch.Tensor:
    """x [tokens, in] times weight [out, in] transposed, plus bias; tokens <= MAX_SKINNY_TOKENS.

    `gate`: the weight's first half is a gate: gate(first) * second, [tokens, out / 2]. All
    contiguous but for x's rows; sizes as `fits` says; of one part.
    """
    outputs = weight.shape[0] // (1 if gate is None else 2)
    out = torch.empty((len(x), outputs), dtype=x.dtype, device=x.device)
    _launch(x, weight, bias, out, tuning, gate)
    return out


def skinny_fp8_linear(
    x: QuantizedRows,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    tuning: SkinnyTuning,
    *,
    dtype: torch.dtype,
    gate: Gate | None = None,
) -> torch.Tensor:
    """`skinny_linear` of float8 numbers: weight [out, in] times scales [out], or, without a gate, a
    scale for each block where x has one for each group, of which an iteration has no more than one;
    in `dtype`."""
    outputs = weight.shape[0] // (1 if gate is None else 2)
    out = torch.empty((len(x.values), outputs), dtype=dtype, device=x.device)
    _launch(x.values, weight, bias, out, tuning, gate, (x.scales, scales))
    return out


def skinny_fp8_parts_of(
    x: QuantizedRows,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    tuning: SkinnyTuning,
) -> torch.Tensor:
    """`skinny_parts_of` float8 numbers: weight [out, in] times scales [out]."""
    shape = (tuning.parts, len(x.values), len(weight))
    out = torch.empty(shape, dtype=torch.float32, device=x.device)
    _launch(x.values, weight, bias, out, tuning, None, (x.scales, scales))
    return out


def skinny_parts_of(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tuning: SkinnyTuning
) -> torch.Tensor:
    """fp32 [parts, tokens, out], whose sum over the parts is what `skinny_linear` computes."""
    shape = (tuning.parts, len(x), len(weight))
    out = torch.empty(shape, dtype=torch.float32, device=x.device)
    _launch(x, weight, bias, out, tuning, None)
    return out


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    tuning: SkinnyTuning,
    gate: Gate | None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """`scales`: those of x's rows and of the weight's."""
    tokens, n_size = out.shape[-2:]
    rows = 1 if tokens == 1 else max(16, triton.next_power_of_2(tokens))
    _skinny[(n_size // tuning.outputs * tuning.parts,)](
        x,
        weight,
        *(scales or (weight, weight)),
        weight if bias is None else bias,
        out,
        tokens,
        n_size,
        x.shape[1],
        x.stride(0),
        tuning.parts,
        ROWS=rows,
        BN=tuning.outputs,
        BK=tuning.inputs,
        STAGES=tuning.stages,
        GATED=gate is not None,
        GELU=gate == "gelu_tanh",
        HAS_BIAS=bias is not None,
        SCALED=scales is not None and scales[0].dim() == 1,
        GROUP=GROUP if scales is not None and scales[0].dim() == 2 else 0,
        PREFETCHED=tuning.prefetched,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
        **launch_options(x.device),
    )
