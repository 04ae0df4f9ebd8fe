"""Formats of the layers that `skinny_gemm.py` times: weights, inputs, and the ways to multiply
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from kvasir_engine.device.float8 import FP8
from kvasir_engine.kernels.gemm.fp8_linear import scaled_mm
from kvasir_engine.kernels.gemm.skinny import (
    Gate,
    SkinnyTuning,
    skinny_fp8_linear,
    skinny_fp8_parts_of,
    skinny_linear,
    skinny_parts_of,
)
from kvasir_engine.kernels.gemm.skinny_table import Form
from kvasir_engine.kernels.gemm.tuned_gemm import MIN_TUNED_TOKENS, tuned_gemm, tuned_gemms_on
from kvasir_engine.kernels.quantize_rows import quantize_rows
from kvasir_engine.kernels.quantized_rows import QuantizedRows
from kvasir_engine.kernels.silu_mul import gated_rows, silu_mul

DEVICE = torch.device("cuda:0")
Run = Callable[[Any], torch.Tensor | QuantizedRows]
"""A layer of this weight."""
TUNED_WEIGHTS = 12
"""Weights on which cuBLASLt's algorithms are timed."""


class Format(Protocol):
    """Numbers of a layer."""

    prefix: str
    """Beginning of its table's name."""
    itemsize: int

    def weight(self, outputs: int, inputs: int) -> Any:
        """Return a random weight."""
        ...

    def inputs(self, tokens: int, size: int) -> Any:
        """Return random inputs."""
        ...

    def skinny(self, x: Any, tuning: SkinnyTuning, form: Form) -> Run:
        """Return the skinny kernel's launch."""
        ...

    def library(self, x: Any, form: Form, weights: Sequence[Any]) -> Run:
        """Return the launch of cuBLAS's fastest, tried on `weights`, and of what follows it."""
        ...


class Bf16:
    """Weights and inputs in bf16."""

    prefix, itemsize = "", 2

    def weight(self, outputs: int, inputs: int) -> torch.Tensor:
        """Return a random weight."""
        return torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16)

    def inputs(self, tokens: int, size: int) -> torch.Tensor:
        """Return random inputs."""
        return self.weight(tokens, size)

    def skinny(self, x: torch.Tensor, tuning: SkinnyTuning, form: Form) -> Run:
        """Return the skinny kernel's launch."""
        if form == "parts":
            return lambda weight: skinny_parts_of(x, weight, None, tuning)
        gate: Gate | None = "silu" if form == "gated" else None
        return lambda weight: skinny_linear(x, weight, None, tuning, gate=gate)

    def library(self, x: torch.Tensor, form: Form, weights: Sequence[torch.Tensor]) -> Run:
        """Return cuBLAS's launch, by the algorithm that the engine chooses, if any."""
        gemms, tokens = tuned_gemms_on(DEVICE), len(x)
        if gemms is not None and tokens >= MIN_TUNED_TOKENS:
            gemms.tune(weights[:TUNED_WEIGHTS], [tokens])

        def run(weight: torch.Tensor) -> torch.Tensor:
            out = tuned_gemm(x, weight)
            out = torch.nn.functional.linear(x, weight) if out is None else out
            return silu_mul(out) if form == "gated" else out

        return run


class Fp8:
    """Float8 with a scale for each output and token; what a gate puts out is quantised, too."""

    prefix, itemsize = "fp8-", 1

    def weight(self, outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a random weight and its scales."""
        weight = torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16).to(FP8)
        return weight, torch.ones(outputs, device=DEVICE)

    def inputs(self, tokens: int, size: int) -> QuantizedRows:
        """Return random inputs."""
        return quantize_rows(torch.randn(tokens, size, device=DEVICE, dtype=torch.bfloat16))

    def skinny(self, x: QuantizedRows, tuning: SkinnyTuning, form: Form) -> Run:
        """Return the skinny kernel's launch."""
        if form == "parts":
            return lambda weight: skinny_fp8_parts_of(x, weight[0], weight[1], None, tuning)
        gate: Gate | None = "silu" if form == "gated" else None

        def run(weight: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor | QuantizedRows:
            out = skinny_fp8_linear(x, *weight, None, tuning, dtype=torch.bfloat16, gate=gate)
            return out if gate is None else quantize_rows(out)

        return run

    def library(self, x: QuantizedRows, form: Form, weights: Sequence[Any]) -> Run:
        """Return the launch of `torch._scaled_mm`."""

        def run(weight: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor | QuantizedRows:
            out = scaled_mm(x, *weight, torch.bfloat16)
            return gated_rows(out, gelu=False) if form == "gated" else out

        return run


FORMATS: dict[str, Format] = {"bf16": Bf16(), "fp8": Fp8()}
