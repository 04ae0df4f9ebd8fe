"""Whole matrices made of weights in 4 bits."""

from __future__ import annotations

import pytest
import torch
from support.engines.int4_checkpoints import Rounding, random_int4

from kvasir_engine.kernels.int4.int4_weights import dequantized_by_torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("inputs", [160, 512])
@pytest.mark.parametrize("how", [Rounding(32), Rounding(64, symmetric=True), Rounding(-1)])
def test_the_matrix_is_exact(triton_interpreter, inputs: int, how: Rounding) -> None:
    from kvasir_engine.kernels.int4.int4_dequantize import dequantized

    weight, matrix = random_int4(70, inputs, how, device=DEVICE)

    assert torch.equal(dequantized(weight, inputs).cpu(), matrix)


def test_half_precision_is_rounded_once(triton_interpreter) -> None:
    from kvasir_engine.kernels.int4.int4_dequantize import dequantized

    weight, _ = random_int4(8, 128, Rounding(32), device=DEVICE, dtype=torch.float16)

    got = dequantized(weight, 128)

    assert torch.equal(got, dequantized_by_torch(weight, 128))
