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
from kvasir_engine.kernels.gate_tile import gate_times, gates_by_columns, tile_outputs
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
TILES = {
    8: GemmTuning(16, 64, 256, 4, 3),
    32: GemmTuning(32, 64, 256, 4, 3),
    128: GemmTuning(64, 128, 128, 4, 3),
}
"""By the mean number of assignments per expert up to which they are used, for inputs of one byte;
as measured on an H100 (benchmarks/gpu/expert_gemm.py)."""
LARGEST_TILES = GemmTuning(128, 256, 128, 8, 4)


def moe_tuning_for(assignments: int, experts: int, itemsize: int) -> GemmTuning:
    """Return the tile shape for this mean number of assignments per expert; `itemsize`: bytes of an
    input, of which larger ones come fewer at a time."""
    fitting = (tiles for mean, tiles in TILES.items() if assignments <= mean * experts)
    tiles = next(fitting, LARGEST_TILES)
    return replace(tiles, inputs=tiles.inputs // itemsize)


@triton.jit
def _tile_gemm(
    a_rows, w_rows, a_scales, w_scales, a_mask, k_size,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """[BM, BN] fp32 of the rows at a_rows [BM] and w_rows [BN]; with a `GROUP`, of which an
    iteration has no more than one, times the scales of groups from a_scales and w_scales on."""
    k = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for start in tl.range(0, k_size, BK, num_stages=STAGES):
        at = start + k
        a_given = a_mask[:, None]
        if EVEN:
            w = tl.load(w_rows[None, :] + at[:, None])
        else:
            a_given &= (at < k_size)[None, :]
            w = tl.load(w_rows[None, :] + at[:, None], mask=(at < k_size)[:, None], other=0.0)
        a = tl.load(a_rows[:, None] + at[None, :], mask=a_given, other=0.0)
        if GROUP > 0:
            of_a = tl.load(a_scales + start // GROUP, mask=a_mask, other=0.0)
            of_w = tl.load(w_scales + start // GROUP)
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
    matrices: tl.constexpr = 2 if GATED else 1
    outputs, n = tile_outputs(tl.program_id(1), n_size, BN, GATED)
    n += expert.to(tl.int64) * n_size * matrices
    a_row, out_row = at.to(tl.int64), assignment
    if FIRST:
        a_row, out_row = assignment // TOP_K, at.to(tl.int64)
    a_scales, w_scales = x_scale_ptr, w_scale_ptr
    if GROUP > 0:
        groups = tl.cdiv(k_size, GROUP)
        a_scales = x_scale_ptr + a_row * groups
        w_scales = w_scale_ptr + n // GROUP * groups
    acc = _tile_gemm(
        x_ptr + a_row * k_size, w_ptr + n * k_size, a_scales, w_scales, own, k_size,
        BM, BN, BK, EVEN, STAGES, GROUP,
    )  # fmt: skip
    if SCALED:
        x_scale = tl.load(x_scale_ptr + a_row, mask=own, other=0.0)[:, None]
        acc *= x_scale * tl.load(w_scale_ptr + n)[None, :]
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    if GATED:
        gate, up = gates_by_columns(acc)
        out = gate_times(gate, up, False, dtype)
    else:
        if not FIRST:
            acc *= tl.load(weights_ptr + assignment, mask=own, other=0.0)[:, None]
        out = acc.to(dtype)
    where = out_ptr + out_row[:, None] * n_size + outputs[None, :]
    tl.store(where, out, mask=own[:, None] & (outputs < n_size)[None, :])


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
    grouped = scales is not None and x_scales.dim() == 2
    if grouped:
        tuning = replace(tuning, inputs=min(tuning.inputs, GROUP))
    tuning = tuning.fitted(x.element_size(), tile_bytes(x.device))
    experts, outputs, k_size = matrices.shape
    n_size = outputs // 2 if gated else outputs
    out = torch.empty((len(blocks.order), n_size), dtype=dtype or x.dtype, device=x.device)
    tiles = triton.cdiv(n_size, tuning.outputs // (2 if gated else 1))
    _grouped_gemm[(len(blocks.experts), tiles)](
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
        SCALED=scales is not None and not grouped,
        GROUP=GROUP if grouped else 0,
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
