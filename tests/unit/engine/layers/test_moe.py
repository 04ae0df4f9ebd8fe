"""Mixture of experts against the same computed densely, expert by expert."""

from __future__ import annotations

import pytest
import torch

from kvasir_engine.layers.moe import ExpertNames, MoE, MoEConfig


@pytest.fixture
def layer(request: pytest.FixtureRequest) -> MoE:
    torch.manual_seed(0)
    config = MoEConfig(8, 6, 5, 2, "silu", normalise=request.param, names=ExpertNames())
    layer = MoE(config)
    for parameter in layer.parameters():
        parameter.data.normal_()
    return layer


@pytest.mark.parametrize("layer", [True, False], indirect=True)
def test_weighted_sum_of_the_chosen_experts(layer: MoE) -> None:
    x = torch.randn(7, 8)
    scores = (x @ layer.router.T).softmax(-1)
    want = torch.zeros_like(x)
    for token in range(7):
        top = scores[token].topk(2)
        total = top.values.sum() if layer.config.normalise else 1.0
        for weight, expert in zip(top.values, top.indices, strict=True):
            gate, up = (layer.gate_up.matrices[expert] @ x[token]).chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            want[token] += weight / total * (layer.down.matrices[expert] @ inner)
    torch.testing.assert_close(layer(x), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer", [True], indirect=True)
def test_half_precision_routes_in_fp32(layer: MoE) -> None:
    weights, _ = layer.to(torch.bfloat16).route(torch.randn(3, 8, dtype=torch.bfloat16))
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(3))
