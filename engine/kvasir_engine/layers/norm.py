"""Root-mean-square normalisation (arXiv:1910.07467)."""

from __future__ import annotations

import torch
from torch import nn

from kvasir_engine.layers.fused import fused_ops
from kvasir_engine.layers.weights import WeightedModule, parameter


class RMSNorm(WeightedModule):
    """Norm x / rms(x) * weight over the last dimension, computed in fp32."""

    offset = 0.0
    """Number added to the stored weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = parameter(size)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of x, in its shape and dtype."""
        fused = fused_ops(x.device)
        if fused is not None and x.dim() == 2 and x.is_contiguous():
            return fused.add_rms_norm(x, None, self.weight, self.eps, offset=self.offset)[0]
        return self._by_torch(x)

    def _by_torch(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)

    def add(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (norm(x + residual), x + residual); without a residual, (norm(x), x)."""
        fused = fused_ops(x.device)
        if fused is not None:
            return fused.add_rms_norm(x, residual, self.weight, self.eps, offset=self.offset)
        total = x if residual is None else x + residual
        return self._by_torch(total), total


class GemmaRMSNorm(RMSNorm):
    """Norm whose weight is stored minus one."""

    offset = 1.0

    def _by_torch(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.offset + self.weight.float()
        return nn.functional.rms_norm(x.float(), (x.shape[-1],), weight, self.eps).to(x.dtype)
