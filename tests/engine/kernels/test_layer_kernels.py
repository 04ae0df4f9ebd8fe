"""The layers' fused kernels against the layers' own arithmetic."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvasir_engine.layers.activation import gated
from kvasir_engine.layers.rotary import RotaryConfig, RotaryEmbedding, apply_rotary

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernels(triton_interpreter) -> SimpleNamespace:
    from kvasir_engine.kernels import gate, norm, rotary

    return SimpleNamespace(
        silu_mul=gate.silu_mul, add_rms_norm=norm.add_rms_norm, rotate=rotary.rotate
    )


@pytest.mark.parametrize("size", [1, 24, 64])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_add_rms_norm(kernels, size: int, offset: float) -> None:
    x, residual = torch.randn(2, 5, size, device=DEVICE)
    weight = torch.randn(size, device=DEVICE)
    normed, total = kernels.add_rms_norm(x, residual, weight, 1e-5, offset=offset)
    want = torch.nn.functional.rms_norm(x + residual, (size,), weight + offset, 1e-5)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normed, want, atol=1e-5, rtol=1e-5)


def test_norm_without_a_residual(kernels) -> None:
    x = torch.randn(3, 16, device=DEVICE)
    weight = torch.randn(16, device=DEVICE)
    normed, total = kernels.add_rms_norm(x, None, weight, 1e-5)
    assert total is x
    want = torch.nn.functional.rms_norm(x, (16,), weight, 1e-5)
    torch.testing.assert_close(normed, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 40, 128])
def test_silu_mul(kernels, size: int) -> None:
    x = torch.randn(4, 2 * size, device=DEVICE)
    want = gated(x.cpu(), torch.nn.functional.silu)
    torch.testing.assert_close(kernels.silu_mul(x).cpu(), want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rotary_dim", [8, 16, 24])
@pytest.mark.parametrize("heads", [1, 5])
def test_rotate(kernels, rotary_dim: int, heads: int) -> None:
    rotary = RotaryEmbedding(RotaryConfig(rotary_dim, 10_000.0))
    cos, sin = rotary(torch.tensor([0, 3, 500]), torch.float32)
    # A view of a wider projection, whose tokens lie apart.
    wide = torch.randn(3, heads + 2, 24)
    want = apply_rotary(wide[:, :heads], (cos, sin))
    moved = wide.to(DEVICE)
    got = kernels.rotate(moved[:, :heads], cos.to(DEVICE), sin.to(DEVICE))
    torch.testing.assert_close(got.cpu(), want, atol=1e-5, rtol=1e-5)
    assert torch.equal(moved[:, heads:].cpu(), wide[:, heads:]), "only its own heads are touched"
    torch.testing.assert_close(moved[:, :heads], got, atol=0, rtol=0)


def test_no_tokens(kernels) -> None:
    empty = torch.empty(0, 16, device=DEVICE)
    assert kernels.silu_mul(empty).shape == (0, 8)
    assert kernels.add_rms_norm(empty, empty, torch.ones(16, device=DEVICE), 1e-5)[0].shape == (
        0,
        16,
    )
