"""The gated MLP of a decoder layer."""

from __future__ import annotations

import torch
from torch import nn

from kvasir_engine.layers.activation import activation, gate_kernel, gated
from kvasir_engine.layers.block_output import Output
from kvasir_engine.layers.fused import fused_ops
from kvasir_engine.layers.linear import ColumnParallelLinear, RowParallelLinear, even_part


class GatedMLP(nn.Module):
    """Gated MLP, down(act(gate(x)) * up(x)); `fused` when the checkpoint stores gate and up as one
    tensor."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, act: str, *, bias: bool, fused: bool = False
    ) -> None:
        super().__init__()
        parts = (
            even_part("gate_proj", intermediate_size),
            even_part("up_proj", intermediate_size),
        )
        self.gate_up_proj = ColumnParallelLinear(hidden_size, parts, bias=bias, fused=fused)
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, bias=bias)
        self.act = activation(act)

    def forward(self, x: torch.Tensor) -> Output:
        """Map [tokens, hidden_size] to the same shape."""
        out: Output = self.down_proj(self._gated(x))
        return out

    def _gated(self, x: torch.Tensor) -> torch.Tensor:
        up = self.gate_up_proj
        fused = fused_ops(x.device)
        gate = gate_kernel(self.act)
        if fused is not None and gate is not None:
            out = fused.skinny_gemm(x, up.weight, up.bias, gate=gate)
            if out is not None:
                return out
        return gated(up(x), self.act)
