"""Rows in float8 by kernels, alone and behind a norm or a gate, against torch's own operations."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import gelu, rms_norm, silu

from kvasir_engine.device.float8 import FP8
from kvasir_engine.kernels.norms.norm_parameters import NormParameters
from kvasir_engine.kernels.quantized_rows import QuantizedRows, grouped_by_torch, quantized_by_torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernels(triton_interpreter):
    from kvasir_engine.kernels import quantize_rows, silu_mul
    from kvasir_engine.kernels.norms import add_norm

    return SimpleNamespace(
        quantize=quantize_rows.quantize_rows,
        quantize_groups=quantize_rows.quantize_groups,
        gated=silu_mul.gated_rows,
        add_norm=add_norm.add_norm_rows,
    )


def assert_same(got: QuantizedRows, want: QuantizedRows) -> None:
    """Scales but for rounding, and values but for those at the middle of two numbers; Triton's
    interpreter also halves numbers whose mantissa is rounded up to the next power of two."""
    assert got.values.dtype == FP8
    torch.testing.assert_close(got.scales.cpu(), want.scales, rtol=1e-5, atol=0)
    ours, theirs = got.values.cpu().float(), want.values.float()
    halved = (2 * ours == theirs) & (DEVICE.type == "cpu")
    assert (halved | (ours != theirs)).float().mean() < 0.06
    torch.testing.assert_close(ours.where(~halved, theirs), theirs, rtol=0.13, atol=0.002)


@pytest.mark.parametrize("size", [5, 128, 200])
def test_each_row_by_its_largest_number(kernels, size: int) -> None:
    wide = torch.randn(4, size + 3) * torch.tensor([[1e-3], [1.0], [7.0], [3e4]])
    x = wide[:, :size]

    got = kernels.quantize(wide.to(DEVICE)[:, :size])

    assert_same(got, quantized_by_torch(x))
    assert got.values.float().abs().amax(-1).tolist() == [448] * 4


@pytest.mark.parametrize("size", [40, 128, 300])
def test_each_group_by_its_largest_number(kernels, size: int) -> None:
    x = torch.randn(3, size) * 10 ** torch.linspace(-0.5, 0.5, size)

    got = kernels.quantize_groups(x.to(DEVICE))

    assert got.scales.shape == (3, -(-size // 128))
    assert_same(got, grouped_by_torch(x))


def test_a_row_of_zeros_stays_zero(kernels) -> None:
    got = kernels.quantize(torch.zeros(2, 16, device=DEVICE))

    assert not got.values.float().any()
    assert got.scales.isfinite().all()


def test_a_given_scale_is_all_rows_own_and_what_is_beyond_it_is_cut(kernels) -> None:
    x, scale = torch.tensor([[1.0, -2.0, 1000.0, 0.0]] * 2), torch.tensor([0.5])

    got = kernels.quantize(x.to(DEVICE), scale.to(DEVICE))

    assert got.values.float().tolist() == [[2.0, -4.0, 448.0, 0.0]] * 2
    assert got.scales.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("gelu_gate", [False, True])
def test_gates(kernels, gelu_gate: bool) -> None:
    x = torch.randn(3, 2 * 40)
    gate, up = x.chunk(2, dim=-1)
    active = gelu(gate, approximate="tanh") if gelu_gate else silu(gate)

    got = kernels.gated(x.to(DEVICE), gelu=gelu_gate)

    assert_same(got, quantized_by_torch(active * up))


@pytest.mark.parametrize("parts", [0, 2])
def test_norms(kernels, parts: int) -> None:
    x = torch.randn(parts, 3, 40) if parts else torch.randn(3, 40)
    residual, weight = torch.randn(3, 40), torch.rand(40)
    total = (x.sum(0) if parts else x) + residual
    norm = NormParameters(weight.to(DEVICE), 1e-6)

    got, added = kernels.add_norm(x.to(DEVICE), residual.to(DEVICE), norm)

    torch.testing.assert_close(added.cpu(), total)
    assert_same(got, quantized_by_torch(rms_norm(total, (40,), weight, 1e-6)))


def test_no_rows(kernels) -> None:
    assert kernels.quantize(torch.zeros(0, 16, device=DEVICE)).values.shape == (0, 16)
    assert kernels.gated(torch.zeros(0, 16, device=DEVICE), gelu=False).values.shape == (0, 8)
