"""Parts that layers with float8 weights share, whatever their scales are of."""

from __future__ import annotations

import torch

from kvasir_engine.device.float8 import FP8_MAX
from kvasir_engine.kernels.quantized_rows import QuantizedRows, as_fp8
from kvasir_engine.quantization.linear_method import Input, LinearLayer
from kvasir_engine.quantization.plain import DUMMY_RANGE


def prepared(x: Input) -> QuantizedRows:
    """Return x, which `LinearMethod.prepare` has quantised. Raises TypeError if it has not."""
    if not isinstance(x, QuantizedRows):
        raise TypeError("A layer with float8 weights was given inputs that were not prepared.")
    return x


def fill_fp8_randomly(layer: LinearLayer, generator: torch.Generator) -> None:
    """Fill `weight` over float8's range, and `weight_scale` so that they are small."""
    weight = layer.weight.data
    drawn = torch.empty(weight.shape, dtype=torch.bfloat16, device=weight.device)
    drawn.uniform_(-FP8_MAX, FP8_MAX, generator=generator)
    weight.copy_(as_fp8(drawn))
    layer.weight_scale.data.fill_(DUMMY_RANGE / FP8_MAX)
