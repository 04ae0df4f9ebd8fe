"""Products in float8 with scales of blocks, against dequantised numbers."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch.nn.functional import linear

from kvasir_engine.device.float8 import FP8
from kvasir_engine.kernels.quantized_rows import QuantizedRows, grouped_by_torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def block_gemm(triton_interpreter) -> ModuleType:
    from kvasir_engine.kernels.gemm import block_gemm as module

    return module


def operands(tokens: int, outputs: int, inputs: int):
    x = grouped_by_torch(torch.randn(tokens, inputs))
    weight, scales = (
        torch.randn(outputs, inputs).to(FP8),
        torch.rand(-(-outputs // 128), -(-inputs // 128)),
    )
    wide = scales.repeat_interleave(128, 0)[:outputs].repeat_interleave(128, 1)[:, :inputs]
    rows = x.values.float() * x.scales.repeat_interleave(128, 1)[:, :inputs]
    bias = torch.randn(outputs)
    moved = QuantizedRows(x.values.to(DEVICE), x.scales.to(DEVICE))
    given = moved, weight.to(DEVICE), scales.to(DEVICE), bias.to(DEVICE)
    return given, linear(rows, weight.float() * wide, bias)


@pytest.mark.parametrize("tokens", [0, 1, 70, 130])
@pytest.mark.parametrize(("outputs", "inputs"), [(256, 384), (72, 200)])
def test_tiles(block_gemm, tokens: int, outputs: int, inputs: int) -> None:
    given, want = operands(tokens, outputs, inputs)
    *operators, bias = given

    got = block_gemm.block_tiles(*operators, torch.float32) + bias

    torch.testing.assert_close(got.cpu(), want, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("tokens", [0, 1, 5, 9])
@pytest.mark.parametrize(("outputs", "inputs"), [(256, 1024), (72, 200)])
def test_few_tokens_and_more(block_gemm, tokens: int, outputs: int, inputs: int) -> None:
    given, want = operands(tokens, outputs, inputs)

    got = block_gemm.block_linear(*given, torch.float32)

    torch.testing.assert_close(got.cpu(), want, atol=1e-3, rtol=1e-4)


def test_tiles_that_are_too_large_are_not_launched(block_gemm) -> None:
    assert block_gemm.TILES.fitted(1, 1 << 20) == block_gemm.TILES
    assert block_gemm.TILES.fitted(1, 70_000).stages == 2
