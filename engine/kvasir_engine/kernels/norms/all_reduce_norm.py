"""All-reduce, addition and norm of a few tokens in one kernel.

Each program has tokens of its own: it writes this rank's share of their sums to the symmetric
buffer, exchanges signals with the same program of the other ranks, and then does with the sums of
all ranks what `add_norm.py` does with a rank's. `one_shot_kernel.py` says how calls follow one
another.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvasir_engine.device.communicators.one_shot_kernel import (
    MAX_PROGRAMS,
    OneShotSum,
    count_call,
    exchange_signals,
)
from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.kernels.norms.norm_token import AddNorm, add_and_norm, norm_weights
from kvasir_engine.kernels.sum_of_parts import sum_of_parts


@triton.jit(do_not_specialize=["tokens"])
def _all_reduce_norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    post_ptr,
    normed_ptr,
    scale_ptr,
    total_ptr,
    state_ptr,
    bases,
    half_bytes,
    signals_at,
    eps,
    post_eps,
    tokens,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    OFFSET: tl.constexpr,
    PARTS: tl.constexpr,
    POST: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    CENTRED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    PDL: tl.constexpr,
):
    program, programs = tl.program_id(0), tl.num_programs(0)
    numbers = tl.arange(0, PADDED)
    inside = numbers < SIZE
    weight, post, bias = norm_weights(
        weight_ptr, bias_ptr, post_ptr, inside, PADDED, OFFSET, NORM, POST, CENTRED
    )
    begin(PDL)
    call = tl.load(state_ptr) + 1
    half = (call & 1).to(tl.int64) * half_bytes
    dtype: tl.constexpr = total_ptr.dtype.element_ty
    kind: tl.constexpr = tl.pointer_type(dtype)
    own_tokens = tl.cdiv(tokens - program, programs)
    own = tl.multiple_of((bases[RANK] + half).to(kind), 16)
    for step in range(own_tokens):
        token = program + step * programs
        at = token * SIZE + numbers
        x = sum_of_parts(x_ptr + at, inside, tokens.to(tl.int64) * SIZE, PARTS)
        tl.store(own + at, x.to(dtype), mask=inside)
    exchange_signals(program, call, bases, signals_at, RANK, RANKS)
    for step in range(own_tokens):
        token = program + step * programs
        at = token * SIZE + numbers
        residual = 0.0
        if HAS_RESIDUAL:
            residual = tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
        # Ranks sum in rank order and get the same bits.
        x = tl.zeros([PADDED], tl.float32)
        for rank in tl.static_range(RANKS):
            share = tl.multiple_of((bases[rank] + half).to(kind), 16)
            x += tl.load(share + at, mask=inside, other=0.0).to(tl.float32)
        add_and_norm(
            x, residual, weight, post, bias, normed_ptr, scale_ptr, total_ptr, token, inside,
            eps, post_eps, SIZE, POST, HAS_RESIDUAL, True, NORM, CENTRED, QUANTIZED,
        )  # fmt: skip
    count_call(state_ptr, call)


def launch_all_reduce_norm(given: AddNorm, ranks: OneShotSum) -> None:
    """Launch it for this rank's share; all ranks make the same calls in the same order."""
    tokens = len(given.total)
    _all_reduce_norm[(min(MAX_PROGRAMS, tokens),)](
        *given.pointers,
        ranks.state,
        ranks.bases,
        ranks.half_bytes,
        2 * ranks.half_bytes,
        *given.eps,
        tokens,
        RANK=ranks.rank,
        RANKS=len(ranks.bases),
        **given.options,
        **launch_options(given.total.device),
    )
