"""Experts in 4 bits: grouped products (`kernels/grouped_gemm.py`) that decode in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.kernels.expert_routing import ExpertBlocks, assignments_of
from kvasir_engine.kernels.gate_tile import gate_times, gates_by_rows, tile_outputs
from kvasir_engine.kernels.grouped_gemm import GemmTuning
from kvasir_engine.kernels.int4.int4_products import fitted_stages, int4_products
from kvasir_engine.kernels.int4.int4_weights import UNIT, WORDS, Int4Weight

_UNIT, _WORDS = tl.constexpr(UNIT), tl.constexpr(WORDS)
OUTPUTS_OF_WARP = 16
"""So that each weight is decoded once for a block of tokens."""
FEW_ROWS, FEW_WARPS, WARPS = 16, 4, 8
"""As measured on an H100 (benchmarks/gpu/expert_gemm.py)."""
_STAGES = 3


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
    PTX: tl.constexpr,
    PDL: tl.constexpr,
):
    begin(PDL)
    block = tl.program_id(0)
    expert = tl.load(experts_ptr + block)
    if expert >= num_experts:
        return
    at, own, assignment = assignments_of(block, order_ptr, first_ptr, end_ptr, BM)
    matrices: tl.constexpr = 2 if GATED else 1
    outputs, n = tile_outputs(tl.program_id(1), n_size, BN, GATED)
    a_row, out_row = at.to(tl.int64), assignment
    if FIRST:
        a_row, out_row = assignment // TOP_K, at.to(tl.int64)
    given = own[None, :]
    x_ptrs = x_ptr + tl.where(own, a_row, 0)[None, :] * k_size + tl.arange(0, _WORDS)[:, None]
    n += expert.to(tl.int64) * n_size * matrices
    columns = n_size.to(tl.int64) * num_experts * matrices
    # Weights are the rows, which tensor cores take from registers.
    acc = int4_products(
        w_ptr, n, x_ptrs, given, k_size, 0, tl.cdiv(k_size, _UNIT), scale_ptr, zero_ptr, columns,
        units_of_group, BN, BM, STAGES, GROUPS, ASYMMETRIC, EVEN, PTX,
    )  # fmt: skip
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    if GATED:
        gate, up = gates_by_rows(acc)
        out = gate_times(gate, up, False, dtype)
    else:
        if not FIRST:
            acc *= tl.load(weights_ptr + assignment, mask=own, other=0.0)[None, :]
        out = acc.to(dtype)
    where = out_ptr + out_row[None, :] * n_size + outputs[:, None]
    tl.store(where, out, mask=given & (outputs < n_size)[:, None])


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
    """`grouped_gemm` with the experts' matrices one after another in 4 bits, by the rows of
    `tuning`."""
    warps = FEW_WARPS if tuning.rows <= FEW_ROWS else WARPS
    outputs, each = len(weight.words) // experts, OUTPUTS_OF_WARP * warps
    n_size, k_size = outputs // 2 if gated else outputs, x.shape[1]
    out = torch.empty((len(blocks.order), n_size), dtype=x.dtype, device=x.device)
    stages = fitted_stages(_STAGES, each, x, tuning.rows)
    tiles = triton.cdiv(n_size, each // 2 if gated else each)
    _int4_grouped_gemm[(len(blocks.experts), tiles)](
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
        BN=each,
        EVEN=k_size % UNIT == 0,
        STAGES=stages,
        PTX=x.device.type == "cuda",
        num_warps=warps,
        num_stages=stages,
        **launch_options(x.device),
    )
    return out
