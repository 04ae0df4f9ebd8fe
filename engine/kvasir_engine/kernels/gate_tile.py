"""Tiles of a gated MLP's first product: half of their outputs are gates, half what those gate.

One product of a wide tile costs less than two of narrow ones: inputs are read once, and there is
one sum to keep in registers. Matrices have the gates' outputs first, then the others'.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvasir_engine.kernels.silu_mul import activated


@triton.jit
def outputs_of_gates(tile, n_size, BN: tl.constexpr):
    """Outputs [BN] of a tile in a matrix of 2 x n_size: gates, then what they gate. Those behind
    the last are the last."""
    half: tl.constexpr = BN // 2
    place = tl.arange(0, BN)
    gate = tl.minimum(tile * half + place % half, n_size - 1)
    return tl.where(place < half, gate, gate + n_size)


@triton.jit
def tile_outputs(tile, n_size, BN: tl.constexpr, GATED: tl.constexpr):
    """(outputs that a tile of BN has, rows [BN] of the matrix for them). Outputs behind the last
    are not to be stored; their rows are the last one's."""
    if GATED:
        outputs = tile * (BN // 2) + tl.arange(0, BN // 2)
        rows = outputs_of_gates(tile, n_size, BN)
    else:
        outputs = tile * BN + tl.arange(0, BN)
        rows = tl.minimum(outputs, n_size - 1)
    return outputs, rows


@triton.jit
def gate_times(gate, gated, GELU: tl.constexpr, dtype: tl.constexpr):
    """The activation of fp32 gates times what they gate, rounded where separate kernels would."""
    active = activated(gate.to(dtype).to(tl.float32), GELU).to(dtype)
    return active * gated.to(dtype)


@triton.jit
def gates_by_rows(acc):
    """(gates, what they gate), both [BN / 2, ROWS], of a tile's sums [BN, ROWS]."""
    both = tl.reshape(acc, (2, acc.shape[0] // 2, acc.shape[1]))
    return tl.split(tl.permute(both, (1, 2, 0)))


@triton.jit
def gates_by_columns(acc):
    """(gates, what they gate), both [ROWS, BN / 2], of a tile's sums [ROWS, BN]."""
    both = tl.reshape(acc, (acc.shape[0], 2, acc.shape[1] // 2))
    return tl.split(tl.permute(both, (0, 2, 1)))
