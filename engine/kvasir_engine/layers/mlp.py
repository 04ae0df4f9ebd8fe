"""The gated MLP of a decoder layer."""

from __future__ import annotations

from torch import nn

from kvasir_engine.layers.activation import activation, gate_kernel, gated, gated_rows
from kvasir_engine.layers.block_output import Output
from kvasir_engine.layers.linear import ColumnParallelLinear, RowParallelLinear, even_part
from kvasir_engine.quantization.linear_method import Input


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

    @property
    def quantizes_tokens(self) -> bool:
        """True if the kernel before it may quantise its inputs."""
        return self.gate_up_proj.quantizes_tokens

    def forward(self, x: Input) -> Output:
        """Map [tokens, hidden_size] to the same shape."""
        out: Output = self.down_proj(self._gated(x))
        return out

    def _gated(self, x: Input) -> Input:
        # Once, for either way.
        x, gate = self.gate_up_proj.prepare(x), gate_kernel(self.act)
        if gate is not None:
            out = self.gate_up_proj.gated_by(x, gate)
            if out is not None:
                return out
        multiply = gated_rows if self.down_proj.quantizes_tokens else gated
        return multiply(self.gate_up_proj(x), self.act)
