"""The attention block against its formula in float64, without a cache in between."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvasir_engine.attention.base import AttentionSpec
from kvasir_engine.layers import attention
from kvasir_engine.layers.attention import AttentionConfig, SelfAttention
from kvasir_engine.layers.norm import RMSNorm
from kvasir_engine.layers.rotary import RotaryConfig, RotaryEmbedding

TOKENS, HIDDEN, HEADS, KV_HEADS, DIM = 7, 12, 4, 2, 6


def dense(spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention over the tokens of one sequence, [tokens, heads, dim] each."""
    k, v = (x.repeat_interleave(spec.num_heads // spec.num_kv_heads, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * spec.scale
    hidden = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turn(x: torch.Tensor, theta: float) -> torch.Tensor:
    """[tokens, heads, dim] with the pairs (i, i + dim / 2) turned by position."""
    half = x.shape[-1] // 2
    speeds = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * speeds
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * angles)[:, None]
    return torch.cat((turned.real, turned.imag), -1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("qk_norm", [None, RMSNorm])
def test_it_projects_norms_rotates_attends_and_projects(
    bias: bool, qk_norm: type[RMSNorm] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "attend", dense)
    fields: dict[str, Any] = {"qkv_bias": bias, "output_bias": bias, "qk_norm": qk_norm}
    spec = AttentionSpec(0, HEADS, KV_HEADS, DIM, DIM**-0.5)
    layer = SelfAttention(AttentionConfig(spec, HIDDEN, **fields))
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data.normal_(generator=generator)
    x = torch.randn(TOKENS, HIDDEN, generator=generator)
    rotary = RotaryEmbedding(RotaryConfig(DIM, 100.0))
    got = layer(x, rotary(torch.arange(TOKENS), x.dtype))

    weights = {name: p.data.double() for name, p in layer.named_parameters()}
    qkv = x.double() @ weights["qkv_proj.weight"].T + weights.get("qkv_proj.bias", 0)
    q, k, v = qkv.view(TOKENS, -1, DIM).split((HEADS, KV_HEADS, KV_HEADS), 1)
    if qk_norm is not None:
        q, k = norm(q, weights["q_norm.weight"]), norm(k, weights["k_norm.weight"])
    mixed = dense(layer.spec, turn(q, 100.0), turn(k, 100.0), v).flatten(1)
    expected = mixed @ weights["o_proj.weight"].T + weights.get("o_proj.bias", 0)
    torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=1e-4)


def test_its_cache_has_the_heads_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvasir_engine.device import collectives

    monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(1, 4))
    whole = AttentionSpec(3, HEADS, KV_HEADS, DIM, 1.0, window=9)
    layer = SelfAttention(AttentionConfig(whole, HIDDEN))
    spec = layer.spec
    assert (spec.layer, spec.num_heads, spec.num_kv_heads, spec.window) == (3, 1, 1, 9)
    assert layer.qkv_proj.weight.shape == (3 * DIM, HIDDEN)
    assert layer.o_proj.weight.shape == (HIDDEN, DIM)
