"""Kernels that do in one pass what layers otherwise do in several, where they run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from kvasir_engine.kernels.support import kernels_run_on


class AddRMSNorm(Protocol):
    """`kernels.norm.add_rms_norm`."""

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        *,
        offset: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class SiluMul(Protocol):
    """`kernels.gate.silu_mul`."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Rotate(Protocol):
    """`kernels.rotary.rotate`."""

    def __call__(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class FusedOps:
    """One function a fused kernel."""

    add_rms_norm: AddRMSNorm
    silu_mul: SiluMul
    rotate: Rotate


@cache
def fused_ops(device: torch.device) -> FusedOps | None:
    """The kernels for `device`, or None where layers use torch's own."""
    if not kernels_run_on(device):
        return None
    # Not at the top: they import triton, which the CPU does not need.
    from kvasir_engine.kernels.gate import silu_mul
    from kvasir_engine.kernels.norm import add_rms_norm
    from kvasir_engine.kernels.rotary import rotate

    return FusedOps(add_rms_norm, silu_mul, rotate)
