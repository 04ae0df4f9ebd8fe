"""The layers' fused kernels against the layers' own arithmetic."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvasir_engine.device.float8 import FP8
from kvasir_engine.kernels.norms.norm_parameters import NormParameters
from kvasir_engine.kv.cache_spec import KVScales
from kvasir_engine.layers.activation import activation, gated
from kvasir_engine.layers.rotary import RotaryConfig, RotaryEmbedding, apply_rotary
from kvasir_engine.runner.token_inputs import torch_token_inputs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernels(triton_interpreter) -> SimpleNamespace:
    from kvasir_engine.kernels import gather_token_inputs, qkv, rotary_table, soft_cap
    from kvasir_engine.kernels import silu_mul as gate
    from kvasir_engine.kernels.norms import add_norm, norm_all_heads

    return SimpleNamespace(
        silu_mul=gate.silu_mul,
        gelu_mul=gate.gelu_mul,
        soft_cap=soft_cap.soft_cap,
        add_norm=add_norm.add_norm,
        rotary_table=rotary_table.rotary_table,
        norm_all_heads=norm_all_heads.norm_all_heads,
        store_qkv=qkv.store_qkv,
        QKNorm=qkv.QKNorm,
        token_inputs=gather_token_inputs.token_inputs,
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, offset: float = 0.0) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight + offset, 1e-5)


@pytest.mark.parametrize("size", [1, 24, 64])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_add_norm(kernels, size: int, offset: float) -> None:
    x, residual = torch.randn(2, 5, size, device=DEVICE)
    norm = NormParameters(torch.randn(size, device=DEVICE), 1e-5, offset)
    normed, total = kernels.add_norm(x, residual, norm)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normed, rms_norm(total, norm.weight, offset), atol=1e-5, rtol=1e-5)


def test_norm_without_a_residual(kernels) -> None:
    x = torch.randn(3, 16, device=DEVICE)
    norm = NormParameters(torch.randn(16, device=DEVICE), 1e-5)
    normed, total = kernels.add_norm(x, None, norm)
    assert total is x
    torch.testing.assert_close(normed, rms_norm(x, norm.weight), atol=1e-5, rtol=1e-5)


def test_layer_norm(kernels) -> None:
    x, residual = torch.randn(2, 5, 24, device=DEVICE)
    weight, bias = torch.randn(2, 24, device=DEVICE)
    normed, total = kernels.add_norm(x, residual, NormParameters(weight, 1e-5, bias=bias))
    want = torch.nn.functional.layer_norm(total, (24,), weight, bias, 1e-5)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normed, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("parts", [0, 1, 3])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_parts_are_summed_and_normed_before_the_residual_is_added(
    kernels, has_residual: bool, parts: int, offset: float
) -> None:
    x = torch.randn(*([parts] if parts else []), 5, 24, device=DEVICE)
    residual = torch.randn(5, 24, device=DEVICE) if has_residual else None
    weight, post = torch.randn(2, 24, device=DEVICE)
    norm = NormParameters(weight, 1e-5, offset)
    whole = x.sum(0) if parts else x
    for before in (None, NormParameters(post, 1e-5, offset)):
        want = whole if before is None else rms_norm(whole, post, offset)
        want = want if residual is None else want + residual
        normed, total = kernels.add_norm(x, residual, norm, post=before)
        torch.testing.assert_close(total, want, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(normed, rms_norm(want, weight, offset), atol=1e-5, rtol=1e-5)
        normed, total = kernels.add_norm(x, residual, None, post=before)
        torch.testing.assert_close(total, want, atol=1e-5, rtol=1e-5)
        assert normed is total


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
@pytest.mark.parametrize(("normed", "parts"), [(False, 0), (True, 0), (True, 3)])
def test_store_qkv(
    kernels, heads: int, kv_heads: int, rotary_dim: int, normed: bool, parts: int
) -> None:
    dim, slots = 24, torch.tensor([1, 7, 11])
    table = RotaryEmbedding(RotaryConfig(rotary_dim, 10_000.0))(
        torch.tensor([0, 3, 50]), torch.float32
    )
    # A view of a wider projection, whose tokens lie apart.
    given = torch.randn(max(parts, 1), 3, heads + 2 * kv_heads + 1, dim)[:, :, :-1]
    x = given.sum(0)
    given = given if parts else given[0]
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
    got = kernels.store_qkv(given.to(DEVICE), cos, sin, norm, cache, slots.to(DEVICE), heads)
    torch.testing.assert_close(got.cpu(), apply_rotary(q, table), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cache.cpu(), want, atol=1e-5, rtol=1e-5)


def test_store_qkv_in_float8(kernels) -> None:
    """Of numbers that float8 has, since the interpreter rounds others as no GPU does."""
    heads, kv_heads, dim, slots = 4, 2, 24, torch.tensor([1, 7, 11])
    # Where nothing turns.
    table = RotaryEmbedding(RotaryConfig(16, 10_000.0))(torch.zeros(3).int(), torch.float32)
    x = torch.randint(-15, 16, (3, heads + 2 * kv_heads, dim)) / 4
    x[1, -1, 5] = 1e4
    scales = KVScales(0.25, 8.0)
    cache = torch.zeros(2, 3, 4, kv_heads, dim).to(FP8).to(DEVICE)
    cos, sin = (each.to(DEVICE) for each in table)
    given = x.to(DEVICE), cos, sin, None, cache, slots.to(DEVICE), heads
    got = kernels.store_qkv(*given, scales=scales)
    assert torch.equal(got.cpu(), x[:, :heads])
    want = torch.zeros(2, 12, kv_heads, dim)
    want[0, slots] = x[:, heads : heads + kv_heads] / scales.key
    # What is too large for float8 is its largest number.
    want[1, slots] = (x[:, heads + kv_heads :] / scales.value).clamp(max=448)
    assert torch.equal(cache.cpu().float().flatten(1, 2), want)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_soft_cap(kernels, dtype: torch.dtype) -> None:
    logits = (torch.randn(3, 1500, device=DEVICE) * 50).to(dtype)
    got = kernels.soft_cap(logits, 30.0)
    assert got.dtype == torch.float32
    want = 30.0 * torch.tanh(logits.float() / 30.0)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-5)


def test_no_tokens(kernels) -> None:
    empty = torch.empty(0, 16, device=DEVICE)
    assert kernels.silu_mul(empty).shape == (0, 8)
    assert kernels.soft_cap(empty, 30.0).shape == (0, 16)
    norm = NormParameters(torch.ones(16, device=DEVICE), 1e-5)
    assert kernels.add_norm(empty, empty, norm)[0].shape == (0, 16)
