"""Fused kernels of a device, or None where layers use torch operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from kvasir_engine.device.capability import kernels_run_on
from kvasir_engine.kernels.quantized_rows import QuantizedRows

if TYPE_CHECKING:
    from kvasir_engine.kernels.qkv import QKNorm


@dataclass(frozen=True, slots=True)
class Int4Ops:
    """The kernels of weights in 4 bits."""

    linear: Callable[..., torch.Tensor]
    gated: Callable[..., torch.Tensor | None]
    parts: Callable[..., torch.Tensor | None]
    dequantized: Callable[..., torch.Tensor]
    grouped: Callable[..., torch.Tensor]
    max_few_tokens: int
    """Largest number of tokens that `linear` takes."""


@dataclass(frozen=True, slots=True)
class FusedOps:
    """The fused kernels; each function documents its own arguments."""

    add_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    add_norm_rows: Callable[..., tuple[QuantizedRows, torch.Tensor]]
    silu_mul: Callable[[torch.Tensor], torch.Tensor]
    gelu_mul: Callable[[torch.Tensor], torch.Tensor]
    gated_rows: Callable[..., QuantizedRows]
    quantize_rows: Callable[[torch.Tensor, torch.Tensor | None], QuantizedRows]
    quantize_groups: Callable[[torch.Tensor], QuantizedRows]
    soft_cap: Callable[[torch.Tensor, float], torch.Tensor]
    skinny_gemm: Callable[..., torch.Tensor | None]
    skinny_parts: Callable[..., torch.Tensor | None]
    tuned_gemm: Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]
    """`kernels.gemm.tuned_gemm`."""
    rotary_table: Callable[
        [torch.Tensor, torch.Tensor, float, torch.dtype], tuple[torch.Tensor, torch.Tensor]
    ]
    store_qkv: Callable[..., torch.Tensor]
    qk_norm: type[QKNorm]
    norm_all_heads: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], None]
    fp8: ModuleType
    """`kernels.gemm.fp8_linear`."""
    fp8_block: ModuleType
    """`kernels.gemm.block_gemm`."""
    moe: ModuleType
    """`kernels.grouped_gemm`."""
    moe_blocks: ModuleType
    """`kernels.expert_routing`."""
    int4: Int4Ops
    clamped_experts: ModuleType
    """`kernels.experts.clamped_experts`."""


def fused_ops(device: torch.device) -> FusedOps | None:
    """Return the kernels for `device`, or None where layers use torch's own operations."""
    return _fused_ops() if kernels_run_on(device) else None


@cache
def _fused_ops() -> FusedOps:
    # Not at the top: they import triton, which the CPU does not need.
    from kvasir_engine.kernels import expert_routing as moe_blocks
    from kvasir_engine.kernels import grouped_gemm as moe
    from kvasir_engine.kernels.experts import clamped_experts
    from kvasir_engine.kernels.gemm import block_gemm as fp8_block
    from kvasir_engine.kernels.gemm import fp8_linear as fp8
    from kvasir_engine.kernels.gemm.skinny_table import skinny_gemm, skinny_parts
    from kvasir_engine.kernels.gemm.tuned_gemm import tuned_gemm
    from kvasir_engine.kernels.int4 import int4_linear as of_int4
    from kvasir_engine.kernels.int4.int4_dequantize import dequantized
    from kvasir_engine.kernels.int4.int4_grouped_gemm import int4_grouped_gemm
    from kvasir_engine.kernels.norms.add_norm import add_norm, add_norm_rows
    from kvasir_engine.kernels.norms.norm_all_heads import norm_all_heads
    from kvasir_engine.kernels.qkv import QKNorm, store_qkv
    from kvasir_engine.kernels.quantize_rows import quantize_groups, quantize_rows
    from kvasir_engine.kernels.rotary_table import rotary_table
    from kvasir_engine.kernels.silu_mul import gated_rows, gelu_mul, silu_mul
    from kvasir_engine.kernels.soft_cap import soft_cap

    return FusedOps(
        add_norm,
        add_norm_rows,
        silu_mul,
        gelu_mul,
        gated_rows,
        quantize_rows,
        quantize_groups,
        soft_cap,
        skinny_gemm,
        skinny_parts,
        tuned_gemm,
        rotary_table,
        store_qkv,
        QKNorm,
        norm_all_heads,
        fp8,
        fp8_block,
        moe,
        moe_blocks,
        Int4Ops(
            of_int4.int4_linear,
            of_int4.int4_gated,
            of_int4.int4_parts,
            dequantized,
            int4_grouped_gemm,
            of_int4.MAX_FEW_TOKENS,
        ),
        clamped_experts,
    )
