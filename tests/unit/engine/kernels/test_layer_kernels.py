"""The layers' fused kernels against the layers' own arithmetic."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvasir_engine.layers.activation import activation, gated
from kvasir_engine.layers.rotary import RotaryConfig, RotaryEmbedding, apply_rotary
from kvasir_engine.runner.token_inputs import torch_token_inputs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernels(triton_interpreter) -> SimpleNamespace:
    from kvasir_engine.kernels import add_rms_norm as norm
    from kvasir_engine.kernels import gather_token_inputs, norm_all_heads, qkv, rotary_table
    from kvasir_engine.kernels import silu_mul as gate

    return SimpleNamespace(
        silu_mul=gate.silu_mul,
        gelu_mul=gate.gelu_mul,
        add_rms_norm=norm.add_rms_norm,
        rotary_table=rotary_table.rotary_table,
        norm_all_heads=norm_all_heads.norm_all_heads,
        store_qkv=qkv.store_qkv,
        QKNorm=qkv.QKNorm,
        token_inputs=gather_token_inputs.token_inputs,
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


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (5, 1)])
def test_norm_all_heads(kernels, heads: int, kv_heads: int) -> None:
    # A view of a wider projection, whose tokens lie apart.
    x = torch.randn(3, heads + 2 * kv_heads + 1, 24, device=DEVICE)[:, :-1]
    query, key = (torch.randn(n * 24, device=DEVICE) for n in (heads, kv_heads))
    q, k, v = (part.flatten(1).clone() for part in x.split((heads, kv_heads, kv_heads), dim=1))
    q = torch.nn.functional.rms_norm(q, query.shape, query, 1e-3)
    k = torch.nn.functional.rms_norm(k, key.shape, key, 1e-3)
    kernels.norm_all_heads(x, query, key, 1e-3)
    torch.testing.assert_close(x.flatten(1), torch.cat((q, k, v), dim=1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 40, 128])
def test_silu_mul(kernels, size: int) -> None:
    x = torch.randn(4, 2 * size, device=DEVICE)
    want = gated(x.cpu(), torch.nn.functional.silu)
    torch.testing.assert_close(kernels.silu_mul(x).cpu(), want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 30.0])
def test_gelu_mul(kernels, scale: float) -> None:
    x = torch.randn(4, 80, device=DEVICE) * scale
    want = gated(x.cpu(), activation("gelu_pytorch_tanh"))
    # Where 1 + tanh is near 0, errors of tanh are errors of the sum: at scale 1 alone numbers are
    # large enough for it to come near, and small enough not to be 0.
    close = (1e-6 if scale == 1.0 else 1e-7) * scale**2
    torch.testing.assert_close(kernels.gelu_mul(x).cpu(), want, atol=close, rtol=1e-5)


@pytest.mark.parametrize("rotary_dim", [8, 16, 24])
def test_rotary_table(kernels, rotary_dim: int) -> None:
    rotary = RotaryEmbedding(RotaryConfig(rotary_dim, 10_000.0))
    rotary.scale = 1.25
    positions = torch.tensor([0, 3, 500, 70_000])
    want = rotary(positions, torch.float32)
    frequencies = rotary.frequencies.to(DEVICE)
    got = kernels.rotary_table(positions.to(DEVICE), frequencies, 1.25, torch.float32)
    for mine, reference in zip(got, want, strict=True):
        torch.testing.assert_close(mine.cpu(), reference, atol=2e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 1), (3, 3)])
@pytest.mark.parametrize("rotary_dim", [16, 24])
@pytest.mark.parametrize("normed", [False, True])
def test_store_qkv(kernels, heads: int, kv_heads: int, rotary_dim: int, normed: bool) -> None:
    dim, slots = 24, torch.tensor([1, 7, 11])
    table = RotaryEmbedding(RotaryConfig(rotary_dim, 10_000.0))(
        torch.tensor([0, 3, 50]), torch.float32
    )
    # A view of a wider projection, whose tokens lie apart.
    x = torch.randn(3, heads + 2 * kv_heads + 1, dim)[:, :-1]
    query, key = torch.randn(2, dim)
    q, k = x[:, :heads], x[:, heads : heads + kv_heads]
    if normed:
        q = torch.nn.functional.rms_norm(q, (dim,), query + 1.0, 1e-6)
        k = torch.nn.functional.rms_norm(k, (dim,), key + 1.0, 1e-6)
    want = torch.full((2, 3, 4, kv_heads, dim), 5.0)
    cache = want.to(DEVICE)
    want.flatten(1, 2)[0, slots] = apply_rotary(k, table)
    want.flatten(1, 2)[1, slots] = x[:, heads + kv_heads :]
    norm = kernels.QKNorm(query.to(DEVICE), key.to(DEVICE), 1e-6, 1.0) if normed else None
    cos, sin = (each.to(DEVICE) for each in table)
    got = kernels.store_qkv(x.to(DEVICE), cos, sin, norm, cache, slots.to(DEVICE), heads)
    torch.testing.assert_close(got.cpu(), apply_rotary(q, table), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cache.cpu(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 40, 1100])
def test_token_inputs(kernels, count: int) -> None:
    history = torch.randint(0, 1000, (4, 50), dtype=torch.int32, device=DEVICE)
    computed = torch.tensor([2, 9, 0, 40], dtype=torch.int32, device=DEVICE)
    table = torch.arange(52, dtype=torch.int32, device=DEVICE).view(4, 13) * 7
    rows = torch.randint(0, 4, (count,), device=DEVICE)
    offsets = torch.randint(0, 10, (count,), dtype=torch.int32, device=DEVICE)
    for behind in (None, offsets):
        given = rows, computed, history, table, 4, behind
        for got, want in zip(kernels.token_inputs(*given), torch_token_inputs(*given), strict=True):
            assert got.dtype == want.dtype
            assert torch.equal(got, want)


def test_no_tokens(kernels) -> None:
    empty = torch.empty(0, 16, device=DEVICE)
    assert kernels.silu_mul(empty).shape == (0, 8)
    assert kernels.add_rms_norm(empty, empty, torch.ones(16, device=DEVICE), 1e-5)[0].shape == (
        0,
        16,
    )
