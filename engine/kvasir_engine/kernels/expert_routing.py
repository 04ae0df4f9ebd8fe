"""Experts that each token goes to, and assignments sorted by expert and cut into blocks.

The number of blocks has a bound that the number of tokens gives, so that a step can be captured as
a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.kernels.rank_sort import rank_sort

MAX_COMPARED = 4096
"""Assignments up to which comparing all of them is faster than a sort."""


@dataclass(frozen=True, slots=True)
class ExpertBlocks:
    """Runs of one expert's assignments, on the device; all int32."""

    order: torch.Tensor
    """[assignments]: assignments sorted by expert; the one of token t's choice c is t * k + c."""
    experts: torch.Tensor
    """[blocks], as many as there are experts where a block is empty."""
    first: torch.Tensor
    """[blocks]: where the block begins in `order`."""
    end: torch.Tensor
    """[blocks]: where its expert's assignments end."""


@triton.jit
def _route(
    scores_ptr, weights_ptr, chosen_ptr, experts,
    TOP_K: tl.constexpr, PADDED: tl.constexpr, NORMALISE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, PADDED)
    given = expert < experts
    scores = tl.load(scores_ptr + token * experts + expert, mask=given, other=float("-inf"))
    scores = scores.to(tl.float32)
    weights = tl.exp(scores - tl.max(scores, 0))
    weights = weights / tl.sum(weights, 0)
    left, chosen_sum = tl.where(given, weights, -1.0), 0.0
    for _ in tl.static_range(TOP_K):
        chosen_sum += tl.max(left, 0)
        left = tl.where(expert == tl.argmax(left, 0), -1.0, left)
    left = tl.where(given, weights, -1.0)
    for choice in tl.static_range(TOP_K):
        best = tl.argmax(left, 0)
        weight = tl.max(left, 0)
        if NORMALISE:
            weight = weight / chosen_sum
        tl.store(weights_ptr + token * TOP_K + choice, weight)
        tl.store(chosen_ptr + token * TOP_K + choice, best.to(tl.int32))
        left = tl.where(expert == best, -1.0, left)


def route(
    scores: torch.Tensor, top_k: int, *, normalise: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 weights and int32 ids [tokens, k] of the experts with the largest softmax of contiguous
    scores [tokens, experts]; `normalise`: the weights sum to one."""
    tokens, experts = scores.shape
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=scores.device)
    chosen = torch.empty((tokens, top_k), dtype=torch.int32, device=scores.device)
    _route[(tokens,)](
        scores,
        weights,
        chosen,
        experts,
        TOP_K=top_k,
        PADDED=triton.next_power_of_2(experts),
        NORMALISE=normalise,
        num_warps=1,
        **launch_options(scores.device),
    )
    return weights, chosen


@triton.jit
def _cut_blocks(
    ids_ptr, experts_ptr, first_ptr, end_ptr, count, experts, most,
    ROWS: tl.constexpr, PADDED: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The expert, beginning and end of BLOCKS blocks."""
    begin(PDL)
    expert = tl.arange(0, PADDED)
    found = tl.zeros([PADDED, CHUNK], tl.int32)
    for start in range(0, count, CHUNK):
        other = start + tl.arange(0, CHUNK)
        theirs = tl.load(ids_ptr + other, mask=other < count, other=1 << 30)
        found += (theirs[None, :] == expert[:, None]).to(tl.int32)
    size = tl.sum(found, 1)
    end = tl.cumsum(size, 0)
    blocks_end = tl.cumsum(tl.cdiv(size, ROWS), 0)
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    own = block < most
    passed = (blocks_end[None, :] <= block[:, None]) & (expert < experts)[None, :]
    of = tl.sum(passed.to(tl.int32), 1)
    tl.store(experts_ptr + block, of, mask=own)
    mine = expert[None, :] == of[:, None]
    blocks_before = blocks_end - tl.cdiv(size, ROWS)
    within = block - tl.sum(tl.where(mine, blocks_before[None, :], 0), 1)
    first = tl.sum(tl.where(mine, (end - size)[None, :], 0), 1) + within * ROWS
    tl.store(first_ptr + block, first, mask=own)
    tl.store(end_ptr + block, tl.sum(tl.where(mine, end[None, :], 0), 1), mask=own)


@triton.jit
def assignments_of(block, order_ptr, first_ptr, end_ptr, ROWS: tl.constexpr):
    """Return a block's places in the sorted order [ROWS], which of them it has, and what
    assignments stand there."""
    at = tl.load(first_ptr + block) + tl.arange(0, ROWS)
    own = at < tl.load(end_ptr + block)
    return at, own, tl.load(order_ptr + at, mask=own, other=0).to(tl.int64)


def make_expert_blocks(chosen: torch.Tensor, num_experts: int, rows: int) -> ExpertBlocks:
    """Blocks of at most `rows` assignments of `chosen` [tokens, k] expert ids, int32."""
    count = chosen.numel()
    if count > MAX_COMPARED:
        return _expert_blocks_by_sort(chosen, num_experts, rows)
    most = -(-count // rows) + min(num_experts, count)
    experts, first, end = torch.empty((3, most), dtype=torch.int32, device=chosen.device).unbind(0)
    options = launch_options(chosen.device)
    by_expert = rank_sort(chosen)
    _cut_blocks[(triton.cdiv(most, 32),)](
        chosen,
        experts,
        first,
        end,
        count,
        num_experts,
        most,
        ROWS=rows,
        PADDED=triton.next_power_of_2(num_experts),
        BLOCKS=32,
        CHUNK=64,
        **options,
    )
    return ExpertBlocks(by_expert, experts, first, end)


def _expert_blocks_by_sort(chosen: torch.Tensor, num_experts: int, rows: int) -> ExpertBlocks:
    flat = chosen.flatten()
    ordered, by_expert = flat.sort(stable=True)
    device, count = flat.device, len(flat)
    ids = torch.arange(num_experts + 1, device=device)
    starts = torch.searchsorted(ordered, ids)
    blocks_before = ((starts[1:] - starts[:-1] + rows - 1) // rows).cumsum(0)
    most = -(-count // rows) + min(num_experts, count)
    block = torch.arange(most, device=device)
    experts = torch.searchsorted(blocks_before, block, right=True)
    known = experts.clamp(max=num_experts - 1)
    within = block - torch.where(known > 0, blocks_before[known - 1], 0)
    return ExpertBlocks(
        order=by_expert.int(),
        experts=experts.int(),
        first=(starts[known] + within * rows).int(),
        end=starts[known + 1].int(),
    )
