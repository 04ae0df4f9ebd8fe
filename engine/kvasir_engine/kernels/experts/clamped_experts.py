"""gpt-oss' experts of all tokens as two grouped products, of plain matrices or in MXFP4: biases,
and between the two a clamped SwiGLU.

As `grouped_gemm.py`, assignments come sorted by expert and cut into blocks of one expert each. Gate
and up are multiplied by the same tile of inputs while it is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.device.tile_memory import tile_bytes
from kvasir_engine.kernels.expert_routing import ExpertBlocks, assignments_of
from kvasir_engine.kernels.experts.mxfp4_tile import FAST_SHARE, mxfp4_tile
from kvasir_engine.kernels.grouped_gemm import MIN_INPUTS, GemmTuning

TILES = {
    1: GemmTuning(16, 64, 256, 4, 3),
    8: GemmTuning(16, 128, 128, 4, 3),
    32: GemmTuning(32, 128, 128, 4, 3),
    64: GemmTuning(64, 64, 128, 4, 3),
}
"""By the mean number of assignments per expert up to which they are used. With few there are few
programs; with some, wide tiles take the fewest instructions a number in MXFP4."""
LARGEST_TILES = GemmTuning(128, 64, 128, 8, 3)


@dataclass(frozen=True, slots=True)
class Matrices:
    """Matrices of all experts."""

    values: torch.Tensor
    """[experts, outputs, inputs], or packed uint8 [experts, groups, outputs, 16]."""
    scales: torch.Tensor | None
    """[experts, groups, outputs] of packed ones."""
    biases: torch.Tensor | None
    """[experts, outputs]."""

    @property
    def outputs(self) -> int:
        """Outputs of one."""
        return self.values.shape[1 if self.scales is None else 2]


@dataclass(frozen=True, slots=True)
class Assignments:
    """Blocks of assignments, and how they are multiplied."""

    blocks: ExpertBlocks
    tuning: GemmTuning
    top_k: int


def clamped_tuning_for(assignments: int, experts: int) -> GemmTuning:
    """Return the tile shape for this mean number of assignments per expert."""
    fitting = (tiles for mean, tiles in TILES.items() if assignments <= mean * experts)
    return next(fitting, LARGEST_TILES)


def fitted(tuning: GemmTuning, itemsize: int, most: int, *, packed: bool) -> GemmTuning:
    """Return the same, or less at a time where tiles of inputs, gates and ups of that type would
    take more than `most` bytes; packed ones take less, and have a quarter of the inputs each."""
    both = replace(tuning, outputs=2 * tuning.outputs).fitted(itemsize, most)
    least = 4 * MIN_INPUTS if packed else MIN_INPUTS
    return replace(both, outputs=tuning.outputs, inputs=max(both.inputs, least))


@triton.jit
def _plain_tile(acc, x, w_ptr, k, n, k_size, k_mask, inside, EVEN: tl.constexpr):
    """acc [BM, BN] plus the product of x [BM, BK] with inputs k of rows n of a plain matrix."""
    mask = inside[None, :]
    if not EVEN:
        mask &= k_mask[:, None]
    w = tl.load(w_ptr + n.to(tl.int64)[None, :] * k_size + k[:, None], mask=mask, other=0.0)
    return tl.dot(x, w, acc, input_precision="ieee")


@triton.jit
def _products(
    x_rows, w_ptr, scale_ptr, own, n, inside, n_size, w_rows, k_size,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GATED: tl.constexpr,
    PACKED: tl.constexpr, EVEN: tl.constexpr, FAST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """fp32 [BM, BN] of the inputs at x_rows [BM] and outputs n, and where GATED of outputs n +
    n_size; w_rows: outputs of one expert's matrix, at w_ptr."""
    acc = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    groups: tl.constexpr = BK // 32
    word = tl.arange(0, BK // 4)
    for start in tl.range(0, k_size, BK, num_stages=STAGES):
        if PACKED:
            k = start + word // 8 * 32 + word % 8
            mask = own[:, None]
            if not EVEN:
                mask &= (k < k_size)[None, :]
            x_at = x_rows[:, None] + k[None, :]
            x0 = tl.load(x_at, mask=mask, other=0.0)
            x1 = tl.load(x_at + 8, mask=mask, other=0.0)
            x2 = tl.load(x_at + 16, mask=mask, other=0.0)
            x3 = tl.load(x_at + 24, mask=mask, other=0.0)
            first, count = start // 32, k_size // 32
            acc = mxfp4_tile(
                acc, x0, x1, x2, x3, w_ptr, scale_ptr, first, count, n, w_rows, inside,
                groups, BN, EVEN, FAST,
            )  # fmt: skip
            if GATED:
                up = mxfp4_tile(
                    up, x0, x1, x2, x3, w_ptr, scale_ptr, first, count, n + n_size, w_rows, inside,
                    groups, BN, EVEN, FAST,
                )  # fmt: skip
        else:
            k = start + tl.arange(0, BK)
            mask = own[:, None]
            if not EVEN:
                mask &= (k < k_size)[None, :]
            x = tl.load(x_rows[:, None] + k[None, :], mask=mask, other=0.0)
            acc = _plain_tile(acc, x, w_ptr, k, n, k_size, k < k_size, inside, EVEN)
            if GATED:
                up = _plain_tile(up, x, w_ptr, k, n + n_size, k_size, k < k_size, inside, EVEN)
    return acc, up


@triton.jit
def _clamped_experts(
    x_ptr,
    w_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    weights_ptr,
    order_ptr,
    experts_ptr,
    first_ptr,
    end_ptr,
    n_size,
    k_size,
    num_experts,
    tokens,
    TOP_K: tl.constexpr,
    GATED: tl.constexpr,
    BIASED: tl.constexpr,
    PACKED: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    EVEN: tl.constexpr,
    FAST: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    begin(PDL)
    block = tl.program_id(0)
    expert = tl.load(experts_ptr + block).to(tl.int64)
    if expert >= num_experts:
        return
    at, own, assignment = assignments_of(block, order_ptr, first_ptr, end_ptr, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = n < n_size
    # Of a token's choices all first ones come before all second ones.
    out_row = assignment % TOP_K * tokens + assignment // TOP_K
    x_row, w_rows = at.to(tl.int64), n_size
    if GATED:
        x_row, out_row, w_rows = assignment // TOP_K, at.to(tl.int64), n_size * 2
    # Four numbers a word.
    size = k_size // 4 if PACKED else k_size
    acc, up = _products(
        x_ptr + x_row * k_size,
        w_ptr + expert * w_rows * size,
        scale_ptr + expert * w_rows * (k_size // 32),
        own, n, inside, n_size, w_rows, k_size, BM, BN, BK, GATED, PACKED, EVEN, FAST, STAGES,
    )  # fmt: skip
    if FAST:
        acc, up = acc / FAST_SHARE, up / FAST_SHARE
    bias_at = bias_ptr + expert * w_rows + n
    if BIASED:
        acc += tl.load(bias_at, mask=inside, other=0.0).to(tl.float32)[None, :]
    if GATED:
        if BIASED:
            up += tl.load(bias_at + n_size, mask=inside, other=0.0).to(tl.float32)[None, :]
        gate = tl.minimum(acc, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
        acc = (up + 1.0) * gate / (1.0 + tl.exp(-ALPHA * gate))
    else:
        acc *= tl.load(weights_ptr + assignment, mask=own, other=0.0)[:, None]
    where = out_ptr + out_row[:, None] * n_size + n[None, :]
    tl.store(where, acc.to(out_ptr.dtype.element_ty), mask=own[:, None] & inside[None, :])


def gated_experts(
    x: torch.Tensor, matrices: Matrices, given: Assignments, *, alpha: float, limit: float
) -> torch.Tensor:
    """(up + 1) * gate * sigmoid(alpha * gate) of x [tokens, in], clamped: [assignments, out / 2] in
    sorted order. Matrices have the gates' outputs first."""
    out = torch.empty(
        (len(given.blocks.order), matrices.outputs // 2), dtype=x.dtype, device=x.device
    )
    _launch(x, matrices, given, out, None, alpha, limit)
    return out


def down_experts(
    x: torch.Tensor, matrices: Matrices, given: Assignments, weights: torch.Tensor
) -> torch.Tensor:
    """Products of x [assignments, in] in sorted order, each times its fp32 weight of [tokens, k]:
    fp32 [k, tokens, out], of which the sum is the experts' output."""
    out = torch.empty((len(x), matrices.outputs), dtype=torch.float32, device=x.device)
    _launch(x, matrices, given, out, weights, 0.0, 0.0)
    return out.view(given.top_k, -1, matrices.outputs)


def _launch(
    x: torch.Tensor,
    matrices: Matrices,
    given: Assignments,
    out: torch.Tensor,
    weights: torch.Tensor | None,
    alpha: float,
    limit: float,
) -> None:
    blocks, (n_size, k_size) = given.blocks, (out.shape[1], x.shape[1])
    packed = matrices.scales is not None
    tuning = fitted(given.tuning, x.element_size(), tile_bytes(x.device), packed=packed)
    values = matrices.values.view(torch.int16) if packed else matrices.values
    _clamped_experts[(len(blocks.experts), triton.cdiv(n_size, tuning.outputs))](
        x,
        values,
        values if matrices.scales is None else matrices.scales,
        x if matrices.biases is None else matrices.biases,
        out,
        x if weights is None else weights,
        blocks.order,
        blocks.experts,
        blocks.first,
        blocks.end,
        n_size,
        k_size,
        len(matrices.values),
        len(blocks.order) // given.top_k,
        TOP_K=given.top_k,
        GATED=weights is None,
        BIASED=matrices.biases is not None,
        PACKED=packed,
        ALPHA=alpha,
        LIMIT=limit,
        BM=tuning.rows,
        BN=tuning.outputs,
        BK=tuning.inputs,
        EVEN=k_size % tuning.inputs == 0,
        # Of instructions that Triton's interpreter does not know.
        FAST=packed and x.dtype == torch.bfloat16 and x.is_cuda,
        STAGES=tuning.stages,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
        **launch_options(x.device),
    )
