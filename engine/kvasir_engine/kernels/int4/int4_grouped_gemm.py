"""Experts in 4 bits: grouped products (`kernels/grouped_gemm.py`) that decode in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.kernels.expert_routing import ExpertBlocks
from kvasir_engine.kernels.grouped_gemm import GemmTuning
from kvasir_engine.kernels.int4.int4_decoding import decoded, scales_of, zero_points
from kvasir_engine.kernels.int4.int4_weights import UNIT, WORDS, Int4Weight

_UNIT, _WORDS = tl.constexpr(UNIT), tl.constexpr(WORDS)
_NIBBLES = tl.constexpr(UNIT // WORDS)
_STAGES = 3


@triton.jit
def _int4_tile(
    a_rows, own, w_ptr, n, k_size, scale_ptr, zero_ptr, columns, units_of_group,
    BM: tl.constexpr, BN: tl.constexpr, GROUPS: tl.constexpr, ASYMMETRIC: tl.constexpr,
    EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """[BM, BN] fp32 of the rows at a_rows [BM] and the outputs n [BN] of `columns`."""
    dtype: tl.constexpr = a_rows.dtype.element_ty
    word, units = tl.arange(0, _WORDS), tl.cdiv(k_size, _UNIT)
    w_ptrs = w_ptr + n[None, :] * (units * _WORDS) + word[:, None]
    nibbles: tl.constexpr = _NIBBLES // GROUPS
    total = tl.zeros([BM, BN], tl.float32)
    for unit in tl.range(0, units, num_stages=STAGES):
        words = tl.load(w_ptrs + unit * _WORDS)
        for group in tl.static_range(GROUPS):
            at = (unit // units_of_group * GROUPS + group).to(tl.int64) * columns + n
            zero = zero_points(zero_ptr, at, ASYMMETRIC)
            acc = tl.zeros([BM, BN], tl.float32)
            for each in tl.static_range(nibbles):
                    inputs = unit * _UNIT + (group * nibbles + each) * _WORDS + word
                given = own[:, None]
                if not EVEN:
                    given = given & (inputs < k_size)[None, :]
                a = tl.load(a_rows[:, None] + inputs[None, :], mask=given, other=0.0)
                weights = (decoded(words, group * nibbles + each) - zero[None, :]).to(dtype)
                acc = tl.dot(a, weights, acc, input_precision="ieee")
            total += acc * scales_of(scale_ptr, at)[None, :]
    return total


@triton.jit
def _int4_grouped_gemm(
    x_ptr,
    w_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    weights_ptr,
    order_ptr,
    experts_ptr,
    first_ptr,
    end_ptr,
    n_size,
    k_size,
    num_experts,
    units_of_group,
    TOP_K: tl.constexpr,
    FIRST: tl.constexpr,
    GATED: tl.constexpr,
    GROUPS: tl.constexpr,
    ASYMMETRIC: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    EVEN: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    begin(PDL)
    block = tl.program_id(0)
    expert = tl.load(experts_ptr + block)
    if expert >= num_experts:
        return
    at = tl.load(first_ptr + block) + tl.arange(0, BM)
    own = at < tl.load(end_ptr + block)
    assignment = tl.load(order_ptr + at, mask=own, other=0).to(tl.int64)
    outputs = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = outputs < n_size
    a_row, out_row = at.to(tl.int64), assignment
    if FIRST:
        a_row, out_row = assignment // TOP_K, at.to(tl.int64)
    a_rows = x_ptr + tl.where(own, a_row, 0) * k_size
    matrices: tl.constexpr = 2 if GATED else 1
    columns = num_experts.to(tl.int64) * n_size * matrices
    # Outputs behind the last are the last, and not stored.
    n = expert.to(tl.int64) * n_size * matrices + tl.minimum(outputs, n_size - 1)
    acc = _int4_tile(
        a_rows, own, w_ptr, n, k_size, scale_ptr, zero_ptr, columns, units_of_group, BM, BN, GROUPS,
        ASYMMETRIC, EVEN, STAGES,
    )  # fmt: skip
    out = acc.to(out_ptr.dtype.element_ty)
    if GATED:
        up = _int4_tile(
            a_rows, own, w_ptr, n + n_size, k_size, scale_ptr, zero_ptr, columns, units_of_group,
            BM, BN, GROUPS, ASYMMETRIC, EVEN, STAGES,
        )  # fmt: skip
        gate = out.to(tl.float32)
        gate = (gate / (1.0 + tl.exp(-gate))).to(out.dtype)
        out = gate * up.to(out.dtype)
    if not FIRST:
        weight = tl.load(weights_ptr + assignment, mask=own, other=0.0)
        out = (acc * weight[:, None]).to(out.dtype)
    where = out_ptr + out_row[:, None] * n_size + outputs[None, :]
    tl.store(where, out, mask=own[:, None] & inside[None, :])


def int4_grouped_gemm(
    x: torch.Tensor,
    weight: Int4Weight,
    blocks: ExpertBlocks,
    tuning: GemmTuning,
    *,
    experts: int,
    top_k: int,
    weights: torch.Tensor | None = None,
    gated: bool = False,
) -> torch.Tensor:
    """`grouped_gemm` with the experts' matrices one after another in 4 bits, of which `tuning`'s
    inputs are units."""
    outputs = len(weight.words) // experts
    n_size, k_size = outputs // 2 if gated else outputs, x.shape[1]
    out = torch.empty((len(blocks.order), n_size), dtype=x.dtype, device=x.device)
    _int4_grouped_gemm[(len(blocks.experts), triton.cdiv(n_size, tuning.outputs))](
        x,
        weight.words,
        weight.scales,
        weight.words if weight.zeros is None else weight.zeros,
        out,
        x if weights is None else weights,
        blocks.order,
        blocks.experts,
        blocks.first,
        blocks.end,
        n_size,
        k_size,
        experts,
        max(1, weight.group // UNIT),
        TOP_K=top_k,
        FIRST=weights is None,
        GATED=gated,
        GROUPS=max(1, UNIT // weight.group),
        ASYMMETRIC=weight.zeros is not None,
        BM=tuning.rows,
        BN=tuning.outputs,
        EVEN=k_size % UNIT == 0,
        STAGES=_STAGES,
        num_warps=tuning.warps,
        num_stages=_STAGES,
        **launch_options(x.device),
    )
    return out
