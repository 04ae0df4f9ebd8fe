"""Products of few tokens with weights in 4 bits, against the dequantised matrix."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from support.engines.int4_checkpoints import Rounding, random_int4
from torch.nn.functional import gelu, linear, silu

from kvasir_engine.kernels.gemm.skinny import SkinnyTuning

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ONE_PART = SkinnyTuning(16, 128, 1, 2, prefetched=512)
ROUNDINGS = [
    Rounding(32),
    Rounding(64, symmetric=True),
    Rounding(128),
    Rounding(256, symmetric=True),
    Rounding(-1),
]


@pytest.fixture
def skinny(triton_interpreter) -> ModuleType:
    from kvasir_engine.kernels.int4 import int4_skinny as module

    return module


def assert_near(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu().float(), want, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("tokens", [1, 5, 17])
@pytest.mark.parametrize("how", ROUNDINGS)
def test_products(skinny, tokens: int, how: Rounding) -> None:
    weight, matrix = random_int4(40, 512, how, device=DEVICE)
    x, bias = torch.randn(tokens, 512), torch.randn(40)

    got = skinny.skinny_int4(x.to(DEVICE), weight, bias.to(DEVICE), ONE_PART)

    assert_near(got, linear(x, matrix, bias))


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("inputs", [96, 160])
def test_inputs_that_are_no_whole_units(skinny, tokens: int, inputs: int) -> None:
    weight, matrix = random_int4(16, inputs, Rounding(32), device=DEVICE)
    # Of another row, so that what is behind a row is no zero.
    x = torch.randn(tokens, 2 * inputs)

    got = skinny.skinny_int4(x.to(DEVICE)[:, :inputs], weight, None, ONE_PART)

    assert_near(got, linear(x[:, :inputs], matrix))


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_sums_in_parts(skinny, tokens: int, parts: int) -> None:
    weight, matrix = random_int4(24, 640, Rounding(64), device=DEVICE)
    x, bias = torch.randn(tokens, 640), torch.randn(24)
    tuning = SkinnyTuning(16, 128, 1, 2, prefetched=512, parts=parts)

    got = skinny.skinny_int4_parts_of(x.to(DEVICE), weight, bias.to(DEVICE), tuning)

    assert got.shape == (parts, tokens, 24)
    assert got.dtype == torch.float32
    assert_near(got.sum(0), linear(x, matrix, bias))
    assert not torch.allclose(got[0].cpu(), linear(x, matrix, bias))


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("how", [Rounding(32), Rounding(128, symmetric=True)])
@pytest.mark.parametrize("tile", [16, 32])
def test_gates(skinny, tokens: int, gate, how: Rounding, tile: int) -> None:
    weight, matrix = random_int4(48, 256, how, device=DEVICE)
    x, bias = torch.randn(tokens, 256) / 8, torch.randn(48)

    tuning = SkinnyTuning(tile, 128, 1, 2, prefetched=512)
    got = skinny.skinny_int4(x.to(DEVICE), weight, bias.to(DEVICE), tuning, gate=gate)

    first, second = linear(x, matrix, bias).chunk(2, dim=-1)
    active = silu(first) if gate == "silu" else gelu(first, approximate="tanh")
    assert_near(got, active * second)


# The interpreter's matrix product has no bfloat16.
@pytest.mark.parametrize("tokens", [1, 5])
def test_half_precision(skinny, tokens: int) -> None:
    dtype = torch.float16
    weight, matrix = random_int4(16, 128, Rounding(32), device=DEVICE, dtype=dtype)
    x = torch.randn(tokens, 128).to(dtype)

    got = skinny.skinny_int4(x.to(DEVICE), weight, None, ONE_PART)

    assert got.dtype == dtype
    torch.testing.assert_close(got.cpu().float(), linear(x.float(), matrix), atol=0.01, rtol=0.001)
