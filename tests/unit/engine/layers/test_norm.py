"""Norms against their formula."""

from __future__ import annotations

import pytest
import torch

from kvasir_engine.layers.norm import GemmaRMSNorm, LayerNorm, RMSNorm


@pytest.mark.parametrize(("cls", "offset"), [(RMSNorm, 0.0), (GemmaRMSNorm, 1.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_formula(cls, offset, dtype) -> None:
    torch.manual_seed(0)
    norm = cls(12, 1e-3).to(dtype)
    norm.weight.data.normal_()
    x = (torch.randn(5, 2, 12) * 3).to(dtype)
    exact = x.double()
    rms = (exact.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt()
    want = exact / rms * (norm.weight.double() + offset)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert norm(x).dtype == dtype
    torch.testing.assert_close(norm(x).double(), want, atol=tolerance, rtol=tolerance)


def test_add_returns_the_sum_that_was_normalised() -> None:
    norm = RMSNorm(4, 1e-6)
    norm.weight.data.fill_(2)
    x, residual = torch.randn(3, 4), torch.randn(3, 4)
    normed, total = norm.add(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, norm(x + residual))
    normed, total = norm.add(x, None)
    assert total is x
    torch.testing.assert_close(normed, norm(x))


def test_layer_norm_takes_off_the_mean() -> None:
    norm = LayerNorm(4, 1e-3)
    norm.weight.data.fill_(2)
    norm.bias.data.fill_(0.5)
    x, residual = torch.randn(3, 4), torch.randn(3, 4)
    normed, total = norm.add(x, residual)
    centred = total - total.mean(-1, keepdim=True)
    want = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * 2 + 0.5
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, want)
