"""Linear layers of a few tokens in 4 bits: the weights are read once and decoded in registers.

As the skinny kernel of plain weights (`gemm/skinny.py`), whose tunings it takes: programs own a few
outputs, or share them and leave the sum of their parts to the next kernel. Products of a group are
summed as they are and scaled once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options, prefetch
from kvasir_engine.kernels.gate_tile import gate_times, gates_by_rows, tile_outputs
from kvasir_engine.kernels.gemm.skinny import Gate, SkinnyTuning
from kvasir_engine.kernels.int4.int4_products import fitted_stages, int4_products
from kvasir_engine.kernels.int4.int4_weights import UNIT, WORDS, Int4Weight, units_of

_UNIT, _WORDS = tl.constexpr(UNIT), tl.constexpr(WORDS)

MIN_ROWS = 8
"""Fewest columns of a product of tensor cores."""


@triton.jit(do_not_specialize=["tokens"])
def _int4_skinny(
    x_ptr,
    w_ptr,
    scale_ptr,
    zero_ptr,
    bias_ptr,
    out_ptr,
    tokens,
    n_size,
    k_size,
    x_stride,
    units_of_group,
    parts,
    ROWS: tl.constexpr,
    BN: tl.constexpr,
    STAGES: tl.constexpr,
    GATED: tl.constexpr,
    GELU: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GROUPS: tl.constexpr,
    ASYMMETRIC: tl.constexpr,
    EVEN: tl.constexpr,
    PTX: tl.constexpr,
    PREFETCHED: tl.constexpr,
    PDL: tl.constexpr,
):
    outputs, n = tile_outputs(tl.program_id(0) // parts, n_size, BN, GATED)
    columns = n_size * 2 if GATED else n_size
    part = tl.program_id(0) % parts
    units = tl.cdiv(k_size, _UNIT)
    each = tl.cdiv(units, parts)
    first = part * each
    end = tl.minimum(first + each, units)
    if PREFETCHED > 0:
        # A cache line has 32 words.
        line = tl.arange(0, PREFETCHED // (2 * _UNIT)) * 32
        ahead = w_ptr + n.to(tl.int64)[:, None] * (units * _WORDS) + first * _WORDS + line[None, :]
        prefetch(ahead, PDL)
    begin(PDL)
    row = tl.arange(0, ROWS)
    given = (row < tokens)[None, :]
    x_ptrs = x_ptr + row[None, :] * x_stride + tl.arange(0, _WORDS)[:, None]
    acc = int4_products(
        w_ptr, n, x_ptrs, given, k_size, first, end, scale_ptr, zero_ptr, columns, units_of_group,
        BN, ROWS, STAGES, GROUPS, ASYMMETRIC, EVEN, PTX,
    )  # fmt: skip
    if HAS_BIAS and part == 0:
        acc += tl.load(bias_ptr + n).to(tl.float32)[:, None]
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    if GATED:
        gate, up = gates_by_rows(acc)
        out = gate_times(gate, up, GELU, dtype)
    else:
        out = acc.to(dtype)
    where = (part * tokens + row).to(tl.int64)[None, :] * n_size + outputs[:, None]
    tl.store(out_ptr + where, out, mask=given & (outputs < n_size)[:, None])


def skinny_int4(
    x: torch.Tensor,
    weight: Int4Weight,
    bias: torch.Tensor | None,
    tuning: SkinnyTuning,
    *,
    gate: Gate | None = None,
) -> torch.Tensor:
    """x [tokens, in] times the weight transposed, plus bias; tokens <= MAX_SKINNY_TOKENS.

    `gate`: the weight's first half is a gate: gate(first) * second, [tokens, out / 2]. All
    contiguous but for x's rows; of one part.
    """
    outputs = len(weight.words) // (1 if gate is None else 2)
    out = torch.empty((len(x), outputs), dtype=x.dtype, device=x.device)
    _launch(x, weight, bias, out, tuning, gate)
    return out


def skinny_int4_parts_of(
    x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None, tuning: SkinnyTuning
) -> torch.Tensor:
    """fp32 [parts, tokens, out], whose sum over the parts is what `skinny_int4` computes."""
    shape = (tuning.parts, len(x), len(weight.words))
    out = torch.empty(shape, dtype=torch.float32, device=x.device)
    _launch(x, weight, bias, out, tuning, None)
    return out


def _launch(
    x: torch.Tensor,
    weight: Int4Weight,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    tuning: SkinnyTuning,
    gate: Gate | None,
) -> None:
    tokens, n_size = out.shape[-2:]
    inputs, words = x.shape[1], weight.words
    units = units_of(inputs)
    # Of the last part, which is the shortest.
    shortest = UNIT * (units - (tuning.parts - 1) * -(-units // tuning.parts))
    rows = max(MIN_ROWS, triton.next_power_of_2(tokens))
    stages = fitted_stages(tuning.stages, tuning.outputs, x, rows)
    tiles = triton.cdiv(n_size, tuning.outputs // (1 if gate is None else 2))
    _int4_skinny[(tiles * tuning.parts,)](
        x,
        words,
        weight.scales,
        words if weight.zeros is None else weight.zeros,
        words if bias is None else bias,
        out,
        tokens,
        n_size,
        inputs,
        x.stride(0),
        max(1, weight.group // UNIT),
        tuning.parts,
        ROWS=rows,
        BN=tuning.outputs,
        STAGES=stages,
        GATED=gate is not None,
        GELU=gate == "gelu_tanh",
        HAS_BIAS=bias is not None,
        GROUPS=max(1, UNIT // weight.group),
        ASYMMETRIC=weight.zeros is not None,
        EVEN=inputs % UNIT == 0,
        PTX=x.device.type == "cuda",
        PREFETCHED=tuning.prefetched if tuning.prefetched <= shortest else 0,
        num_warps=tuning.warps,
        num_stages=stages,
        **launch_options(x.device),
    )
