"""Experts of all tokens as two grouped products, whose launches depend on no value.

Assignments (token, expert) come sorted by expert and cut into blocks of one expert each
(`expert_routing.py`). After vLLM's fused_moe, without its padding of the sorted list.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.device.tile_memory import tile_bytes
from kvasir_engine.kernels.expert_routing import ExpertBlocks, assignments_of
from kvasir_engine.kernels.quantized_rows import GROUP, QuantizedRows


@dataclass(frozen=True, slots=True)
class GemmTuning:
    """Shape of a program's product, and how it is launched."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int

    def fitted(self, itemsize: int, most: int) -> GemmTuning:
        """Return the same, or less at a time where its tiles would take more than `most` bytes."""
        tuning = self
        while itemsize * tuning.stages * (tuning.rows + tuning.outputs) * tuning.inputs > most:
            if tuning.stages > 2:
                tuning = replace(tuning, stages=tuning.stages - 1)
            elif tuning.inputs > MIN_INPUTS:
                tuning = replace(tuning, inputs=tuning.inputs // 2)
            else:
                break
        return tuning


MIN_INPUTS = 16
"""Fewest inputs of an iteration: those of one instruction of a tensor core."""
SMALL_TILES = GemmTuning(16, 64, 128, 4, 4)
MEDIUM_TILES = GemmTuning(64, 64, 64, 4, 4)
LARGE_TILES = GemmTuning(128, 64, 64, 8, 3)


def moe_tuning_for(assignments: int, experts: int) -> GemmTuning:
    """Return the tile shape for this mean number of assignments per expert."""
    if assignments <= 16 * experts:
        return SMALL_TILES
    return MEDIUM_TILES if assignments <= 128 * experts else LARGE_TILES


@triton.jit
def _tile_gemm(
    a_rows, w_rows, a_scales, w_scales, a_mask, w_mask, k_size,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """[BM, BN] fp32 of the rows at a_rows [BM] and w_rows [BN]; with a `GROUP`, of which an
    iteration has no more than one, times the scales of groups from a_scales and w_scales on."""
    k = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for start in tl.range(0, k_size, BK, num_stages=STAGES):
        at = start + k
        a_given, w_given = a_mask[:, None], w_mask[None, :]
        if not EVEN:
            a_given, w_given = a_given & (at < k_size)[None, :], w_given & (at < k_size)[:, None]
        a = tl.load(a_rows[:, None] + at[None, :], mask=a_given, other=0.0)
        w = tl.load(w_rows[None, :] + at[:, None], mask=w_given, other=0.0)
        if GROUP > 0:
            of_a = tl.load(a_scales + start // GROUP, mask=a_mask, other=0.0)
            of_w = tl.load(w_scales + start // GROUP, mask=w_mask, other=0.0)
            acc += tl.dot(a, w) * of_a[:, None] * of_w[None, :]
        else:
            acc = tl.dot(a, w, acc, input_precision="ieee")
    return acc


@triton.jit
def _grouped_gemm(
    x_ptr,
    w_ptr,
    x_scale_ptr,
    w_scale_ptr,
    out_ptr,
    weights_ptr,
    order_ptr,
    experts_ptr,
    first_ptr,
    end_ptr,
    n_size,
    k_size,
    num_experts,
    TOP_K: tl.constexpr,
    FIRST: tl.constexpr,
    GATED: tl.constexpr,
    SCALED: tl.constexpr,
    GROUP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    EVEN: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    begin(PDL)
    block = tl.program_id(0)
    expert = tl.load(experts_ptr + block)
    if expert >= num_experts:
        return
    at, own, assignment = assignments_of(block, order_ptr, first_ptr, end_ptr, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = n < n_size
    a_row, out_row = at.to(tl.int64), assignment
    if FIRST:
        a_row, out_row = assignment // TOP_K, at.to(tl.int64)
    matrices: tl.constexpr = 2 if GATED else 1
    w_rows = w_ptr + (expert.to(tl.int64) * n_size * matrices + n) * k_size
    a_rows = x_ptr + a_row * k_size
    a_scales, w_scales, up_scales = x_scale_ptr, w_scale_ptr, w_scale_ptr
    if GROUP > 0:
        groups = tl.cdiv(k_size, GROUP)
        first = expert.to(tl.int64) * n_size * matrices + n
        a_scales = x_scale_ptr + a_row * groups
        w_scales = w_scale_ptr + first // GROUP * groups
        up_scales = w_scale_ptr + (first + n_size) // GROUP * groups
    acc = _tile_gemm(
        a_rows, w_rows, a_scales, w_scales, own, inside, k_size, BM, BN, BK, EVEN, STAGES, GROUP
    )
    if SCALED:
        w_scales = w_scale_ptr + expert.to(tl.int64) * n_size * matrices + n
        x_scale = tl.load(x_scale_ptr + a_row, mask=own, other=0.0)[:, None]
        acc *= x_scale * tl.load(w_scales, mask=inside, other=0.0)[None, :]
    out = acc.to(out_ptr.dtype.element_ty)
    if GATED:
        up = _tile_gemm(
            a_rows, w_rows + n_size.to(tl.int64) * k_size, a_scales, up_scales, own, inside, k_size,
            BM, BN, BK, EVEN, STAGES, GROUP,
        )  # fmt: skip
        if SCALED:
            up *= x_scale * tl.load(w_scales + n_size, mask=inside, other=0.0)[None, :]
        gate = out.to(tl.float32)
        gate = (gate / (1.0 + tl.exp(-gate))).to(out.dtype)
        out = gate * up.to(out.dtype)
    if not FIRST:
        weight = tl.load(weights_ptr + assignment, mask=own, other=0.0)
        out = (acc * weight[:, None]).to(out.dtype)
    where = out_ptr + out_row[:, None] * n_size + n[None, :]
    tl.store(where, out, mask=own[:, None] & inside[None, :])


def grouped_gemm(
    x: torch.Tensor | QuantizedRows,
    matrices: torch.Tensor,
    blocks: ExpertBlocks,
    tuning: GemmTuning,
    *,
    top_k: int,
    weights: torch.Tensor | None = None,
    gated: bool = False,
    scales: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Every assignment's product with its expert's matrix [experts, out, in]; quantised x with
    `scales` [experts x out] of the matrices, or of their blocks where x has groups, into `dtype`.

    Without `weights` (the first product): x [tokens, in] to [assignments, out] in sorted order;
    `gated`: silu(first half) * second half, [assignments, out / 2]. With fp32 `weights` [tokens,
    k]: x in sorted order to the assignments' own, each times its weight.
    """
    x, x_scales = x if isinstance(x, QuantizedRows) else (x, x)
    tuning = tuning.fitted(x.element_size(), tile_bytes(x.device))
    experts, outputs, k_size = matrices.shape
    n_size = outputs // 2 if gated else outputs
    out = torch.empty((len(blocks.order), n_size), dtype=dtype or x.dtype, device=x.device)
    _grouped_gemm[(len(blocks.experts), triton.cdiv(n_size, tuning.outputs))](
        x,
        matrices,
        x_scales,
        matrices if scales is None else scales,
        out,
        x if weights is None else weights,
        blocks.order,
        blocks.experts,
        blocks.first,
        blocks.end,
        n_size,
        k_size,
        experts,
        TOP_K=top_k,
        FIRST=weights is None,
        GATED=gated,
        SCALED=scales is not None and x_scales.dim() == 1,
        GROUP=GROUP if scales is not None and x_scales.dim() == 2 else 0,
        BM=tuning.rows,
        BN=tuning.outputs,
        BK=tuning.inputs,
        EVEN=k_size % tuning.inputs == 0,
        STAGES=tuning.stages,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
        **launch_options(x.device),
    )
    return out
