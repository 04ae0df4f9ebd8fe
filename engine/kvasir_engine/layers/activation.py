"""Activations of gated MLPs, under their names in Hugging Face configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from kvasir_engine.kernels.quantized_rows import QuantizedRows
from kvasir_engine.layers.fused import fused_ops

if TYPE_CHECKING:
    from kvasir_engine.kernels.gemm.skinny import Gate

Activation = Callable[[torch.Tensor], torch.Tensor]


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "silu": nn.functional.silu,
    "swish": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
}


def activation(name: str) -> Activation:
    """Return the function called `name`. Raises ValueError."""
    if name not in ACTIVATIONS:
        raise ValueError(
            f"config field 'hidden_act': {name!r} is not supported; one of {sorted(ACTIVATIONS)} is"
        )
    return ACTIVATIONS[name]


def gate_kernel(act: Activation) -> Gate | None:
    """Return the name by which kernels know the activation of a gate, None where they do not."""
    if act is nn.functional.silu:
        return "silu"
    return "gelu_tanh" if act is _gelu_tanh else None


def gated(x: torch.Tensor, act: Activation) -> torch.Tensor:
    """Return act(gate) * up of x [..., 2 n], whose first half is the gate: [..., n]."""
    fused = fused_ops(x.device)
    if fused is not None and x.dim() == 2 and x.is_contiguous():
        match gate_kernel(act):
            case "silu":
                return fused.silu_mul(x)
            case "gelu_tanh":
                return fused.gelu_mul(x)
    gate, up = x.chunk(2, dim=-1)
    return act(gate) * up


def gated_rows(x: torch.Tensor, act: Activation) -> torch.Tensor | QuantizedRows:
    """Return the same, quantised by token where one kernel does both."""
    fused, gate = fused_ops(x.device), gate_kernel(act)
    if fused is None or gate is None or not x.is_contiguous():
        return gated(x, act)
    return fused.gated_rows(x, gelu=gate == "gelu_tanh")
