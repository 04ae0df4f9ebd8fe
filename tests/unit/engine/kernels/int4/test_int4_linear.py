"""Which kernel multiplies how many tokens, and whole matrices made of weights in 4 bits."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from support.engines.int4_checkpoints import Rounding, random_int4
from torch.nn.functional import linear, silu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def int4(triton_interpreter) -> ModuleType:
    from kvasir_engine.kernels.int4 import int4_linear as module

    return module


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_few_tokens(int4, tokens: int) -> None:
    weight, matrix = random_int4(40, 256, Rounding(128), device=DEVICE)
    # Columns of a wider tensor are rows apart, rows of its transpose are not.
    x, bias = torch.randn(256, tokens).t(), torch.randn(40)

    got = int4.int4_linear(x.to(DEVICE), weight, bias.to(DEVICE))

    torch.testing.assert_close(got.cpu(), linear(x, matrix, bias), atol=1e-3, rtol=1e-4)


def test_layers_of_few_outputs_and_many_inputs_are_computed_in_parts(int4) -> None:
    weight, matrix = random_int4(16, 1024, Rounding(128), device=DEVICE)
    x = torch.randn(2, 1024)

    got = int4.int4_parts(x.to(DEVICE), weight, None)

    assert got.shape == (2, 2, 16)
    torch.testing.assert_close(got.sum(0).cpu(), linear(x, matrix), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("outputs", "inputs", "tokens", "parts"),
    [
        (4096, 14336, 1, 8),
        (6144, 4096, 1, 4),
        (28672, 4096, 1, 1),
        (128, 2048, 8, 4),
        (128, 512, 8, 1),
        (4096, 4096, 16, 8),
        (4096, 4096, 64, 4),
        (4096, 14336, 64, 4),
        (128, 512, 64, 1),
    ],
)
def test_parts_occupy_the_gpu(int4, outputs: int, inputs: int, tokens: int, parts: int) -> None:
    assert int4.parts_for(outputs, inputs, tokens, 132) == parts


def test_what_is_not_for_the_kernel_of_few_tokens(int4) -> None:
    weight, _ = random_int4(16, 256, Rounding(128), device=DEVICE)
    many = torch.zeros(int4.MAX_FEW_TOKENS + 1, 256, device=DEVICE)
    assert int4.int4_parts(many, weight, None) is None
    assert int4.int4_parts(many[:0], weight, None) is None
    assert int4.int4_gated(many, weight, None, "silu") is None
    assert int4.int4_parts(many[:1], weight, None) is None, "there are too few inputs to divide"


def test_gate(int4) -> None:
    weight, matrix = random_int4(32, 128, Rounding(64), device=DEVICE)
    x = torch.randn(2, 128) / 8

    got = int4.int4_gated(x.to(DEVICE), weight, None, "silu")

    first, second = linear(x, matrix).chunk(2, dim=-1)
    torch.testing.assert_close(got.cpu(), silu(first) * second, atol=1e-3, rtol=1e-4)
