"""Experts in 4 bits: grouped products against the layer's loop over experts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.engines.int4_checkpoints import Rounding, quantization_config

from kvasir.models.quantization_config import parse_quantization
from kvasir_engine.layers.moe import ExpertNames, MoE, MoEConfig
from kvasir_engine.quantization.int4 import Int4Linear

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernels(triton_interpreter):
    from kvasir_engine.kernels import expert_routing, grouped_gemm
    from kvasir_engine.kernels.int4.int4_grouped_gemm import int4_grouped_gemm

    int4 = SimpleNamespace(grouped=int4_grouped_gemm)
    return SimpleNamespace(moe=grouped_gemm, moe_blocks=expert_routing, int4=int4)


def make_layer(act: str, how: Rounding) -> MoE:
    layer = MoE(MoEConfig(160, 64, 4, 2, act, normalise=True, names=ExpertNames()))
    quantization = parse_quantization({"quantization_config": quantization_config(how, "awq", [])})
    assert quantization is not None
    layer.use(Int4Linear(quantization))
    layer.router.data.normal_(std=0.4)
    for linear in (layer.gate_up, layer.down):
        linear.method.fill_randomly(linear, torch.Generator().manual_seed(3))
        linear.weight_scale.data.uniform_(0.01, 0.1)
        if linear.weight_zero is not None:
            linear.weight_zero.data.random_(4, 12)
    return layer.to(DEVICE)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize(
    ("act", "how"),
    [("silu", Rounding(32)), ("gelu", Rounding(64, symmetric=True)), ("silu", Rounding(-1))],
)
def test_experts(kernels, monkeypatch, tokens: int, act: str, how: Rounding) -> None:
    tuning = kernels.moe.GemmTuning(16, 16, 128, 1, 2)
    monkeypatch.setattr(kernels.moe, "moe_tuning_for", lambda *_: tuning)
    torch.manual_seed(tokens)
    layer, x = make_layer(act, how), torch.randn(tokens, 160, device=DEVICE)

    got = layer._by_kernels(x, kernels)

    torch.testing.assert_close(got, layer._by_torch(x), atol=1e-4, rtol=1e-4)
