"""Norms against their formula."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvasir_engine.layers.block_output import BlockOutput
from kvasir_engine.layers.norm import GemmaRMSNorm, LayerNorm, RMSNorm, added


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


def test_what_is_left_to_the_addition_is_done_there(
    monkeypatch: pytest.MonkeyPatch, triton_interpreter
) -> None:
    """An output in parts and a norm of it, by kernels in Triton's interpreter and by torch."""
    from kvasir_engine.kernels.norms.add_norm import add_norm
    from kvasir_engine.layers import norm as layers

    norm, post = RMSNorm(24, 1e-5), RMSNorm(24, 1e-5)
    for each in (norm, post):
        each.weight.data.normal_()
    parts, residual = torch.randn(3, 5, 24), torch.randn(5, 24)
    total = added(post.of_output(parts.sum(0)), residual)
    torch.testing.assert_close(total, post(parts.sum(0)) + residual)
    want, _ = norm.add(total, None)
    monkeypatch.setattr(layers, "fused_ops", lambda _: SimpleNamespace(add_norm=add_norm))
    output = post.of_output(BlockOutput(parts))
    assert isinstance(output, BlockOutput)
    torch.testing.assert_close(added(output, residual), total)
    got, kept = norm.add(output, residual)
    torch.testing.assert_close(kept, total)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(added(BlockOutput(parts), None), parts.sum(0))
    assert added(residual, None) is residual
