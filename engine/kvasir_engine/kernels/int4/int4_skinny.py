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
from kvasir_engine.kernels.gemm.skinny import Gate, SkinnyTuning
from kvasir_engine.kernels.int4.int4_decoding import decoded, scales_of, zero_points
from kvasir_engine.kernels.int4.int4_weights import UNIT, WORDS, Int4Weight, units_of
from kvasir_engine.kernels.silu_mul import activated

_UNIT, _WORDS = tl.constexpr(UNIT), tl.constexpr(WORDS)
_NIBBLES = tl.constexpr(UNIT // WORDS)


@triton.jit
def _unit_of_one(
    words, x_ptr, k, k_size, scale_ptr, zero_ptr, at, stride,
    N: tl.constexpr, GROUPS: tl.constexpr, ASYMMETRIC: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """[N, WORDS] fp32, whose sums over the words are products with one row over a unit, inputs k
    [WORDS] and on; `at`: places of its first group's scales, the next's are `stride` further."""
    word = tl.arange(0, _WORDS)
    nibbles: tl.constexpr = _NIBBLES // GROUPS
    total = tl.zeros([N, _WORDS], tl.float32)
    for group in tl.static_range(GROUPS):
        sums = tl.zeros([N, _WORDS], tl.float32)
        of_x = tl.zeros([_WORDS], tl.float32)
        for each in tl.static_range(nibbles):
            inputs = k + (group * nibbles + each) * _WORDS + word
            if EVEN:
                x = tl.load(x_ptr + inputs).to(tl.float32)
            else:
                x = tl.load(x_ptr + inputs, mask=inputs < k_size, other=0.0).to(tl.float32)
            sums += decoded(words, group * nibbles + each) * x[None, :]
            of_x += x
        zero = zero_points(zero_ptr, at + group * stride, ASYMMETRIC)
        scale = scales_of(scale_ptr, at + group * stride)
        total += (sums - zero[:, None] * of_x[None, :]) * scale[:, None]
    return total


@triton.jit
def _unit_of_several(
    words, x_ptrs, given, k, k_size, scale_ptr, zero_ptr, at, stride,
    N: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, ASYMMETRIC: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """[N, ROWS] fp32 products over a unit of inputs, k and on; x_ptrs [WORDS, ROWS]."""
    dtype: tl.constexpr = x_ptrs.dtype.element_ty
    word = tl.arange(0, _WORDS)
    nibbles: tl.constexpr = _NIBBLES // GROUPS
    total = tl.zeros([N, ROWS], tl.float32)
    for group in tl.static_range(GROUPS):
        zero = zero_points(zero_ptr, at + group * stride, ASYMMETRIC)
        acc = tl.zeros([N, ROWS], tl.float32)
        for each in tl.static_range(nibbles):
            inputs = k + (group * nibbles + each) * _WORDS
            mask = given
            if not EVEN:
                mask = given & (inputs + word < k_size)[:, None]
            x = tl.load(x_ptrs + inputs, mask=mask, other=0.0)
            weights = (decoded(words, group * nibbles + each) - zero[:, None]).to(dtype)
            acc = tl.dot(weights, x, acc, input_precision="ieee")
        total += acc * scales_of(scale_ptr, at + group * stride)[:, None]
    return total


@triton.jit
def _rows_of_int4(
    w_ptr, n, behind, x_ptr, k_size, first, end, tokens, x_stride, scale_ptr, zero_ptr, columns,
    units_of_group,
    N: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, BOTH: tl.constexpr,
    GROUPS: tl.constexpr, ASYMMETRIC: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """[N, ROWS] fp32 products of x's rows and outputs n [N] over units first .. end, and, if
    `BOTH`, of the outputs that stand `behind` those; else zeros. Scales have `columns` a group."""
    word, row = tl.arange(0, _WORDS), tl.arange(0, ROWS)
    row_words = tl.cdiv(k_size, _UNIT) * _WORDS
    w_ptrs = w_ptr + n.to(tl.int64)[:, None] * row_words + word[None, :]
    up_ptrs = w_ptrs + behind.to(tl.int64) * row_words
    x_ptrs = x_ptr + row[None, :] * x_stride + word[:, None]
    given = (row < tokens)[None, :]
    sums: tl.constexpr = _WORDS if ROWS == 1 else ROWS
    acc = tl.zeros([N, sums], tl.float32)
    other = tl.zeros([N, sums], tl.float32)
    for unit in tl.range(first, end, num_stages=STAGES):
        at = (unit // units_of_group * GROUPS).to(tl.int64) * columns + n
        k = unit * _UNIT
        words = tl.load(w_ptrs + unit * _WORDS, eviction_policy="evict_first")
        if ROWS == 1:
            acc += _unit_of_one(
                words, x_ptr, k, k_size, scale_ptr, zero_ptr, at, columns, N, GROUPS, ASYMMETRIC,
                EVEN,
            )  # fmt: skip
        else:
            acc += _unit_of_several(
                words, x_ptrs, given, k, k_size, scale_ptr, zero_ptr, at, columns, N, ROWS, GROUPS,
                ASYMMETRIC, EVEN,
            )  # fmt: skip
        if BOTH:
            words = tl.load(up_ptrs + unit * _WORDS, eviction_policy="evict_first")
            if ROWS == 1:
                other += _unit_of_one(
                    words, x_ptr, k, k_size, scale_ptr, zero_ptr, at + behind, columns, N, GROUPS,
                    ASYMMETRIC, EVEN,
                )  # fmt: skip
            else:
                other += _unit_of_several(
                    words, x_ptrs, given, k, k_size, scale_ptr, zero_ptr, at + behind, columns, N,
                    ROWS, GROUPS, ASYMMETRIC, EVEN,
                )  # fmt: skip
    if ROWS == 1:
        acc = tl.sum(acc, 1)[:, None]
        other = tl.sum(other, 1)[:, None]
    return acc, other


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
    PREFETCHED: tl.constexpr,
    PDL: tl.constexpr,
):
    outputs = tl.program_id(0) // parts * BN + tl.arange(0, BN)
    # Outputs behind the last are the last, and not stored.
    n = tl.minimum(outputs, n_size - 1)
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
        if GATED:
            prefetch(ahead + n_size.to(tl.int64) * units * _WORDS, PDL)
    begin(PDL)
    columns = n_size * 2 if GATED else n_size
    acc, up = _rows_of_int4(
        w_ptr, n, n_size, x_ptr, k_size, first, end, tokens, x_stride, scale_ptr, zero_ptr, columns,
        units_of_group, BN, ROWS, STAGES, GATED, GROUPS, ASYMMETRIC, EVEN,
    )  # fmt: skip
    if HAS_BIAS and part == 0:
        acc += tl.load(bias_ptr + n).to(tl.float32)[:, None]
    out = acc.to(out_ptr.dtype.element_ty)
    if GATED:
        if HAS_BIAS:
            up += tl.load(bias_ptr + n_size + n).to(tl.float32)[:, None]
        # Rounded where separate kernels would round.
        gate = activated(out.to(tl.float32), GELU).to(out.dtype)
        out = gate * up.to(out.dtype)
    row = tl.arange(0, ROWS)
    where = (part * tokens + row).to(tl.int64)[None, :] * n_size + n[:, None]
    tl.store(out_ptr + where, out, mask=(row < tokens)[None, :] & (outputs < n_size)[:, None])


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
    _int4_skinny[(triton.cdiv(n_size, tuning.outputs) * tuning.parts,)](
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
        ROWS=1 if tokens == 1 else max(16, triton.next_power_of_2(tokens)),
        BN=tuning.outputs,
        STAGES=tuning.stages,
        GATED=gate is not None,
        GELU=gate == "gelu_tanh",
        HAS_BIAS=bias is not None,
        GROUPS=max(1, UNIT // weight.group),
        ASYMMETRIC=weight.zeros is not None,
        EVEN=inputs % UNIT == 0,
        PREFETCHED=tuning.prefetched if tuning.prefetched <= shortest else 0,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
        **launch_options(x.device),
    )
