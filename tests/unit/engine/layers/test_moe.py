"""Mixture of experts against the same computed densely, expert by expert."""

from __future__ import annotations

import pytest
import torch

from kvasir_engine.device import collectives
from kvasir_engine.layers import fused
from kvasir_engine.layers.moe import ExpertNames, MoE, MoEConfig


def make_layer(config: MoEConfig) -> MoE:
    torch.manual_seed(0)
    layer = MoE(config)
    for parameter in layer.parameters():
        parameter.data.normal_()
    return layer


@pytest.fixture
def layer(request: pytest.FixtureRequest) -> MoE:
    return make_layer(MoEConfig(8, 6, 5, 2, "silu", normalise=request.param, names=ExpertNames()))


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


@pytest.mark.parametrize("by_kernels", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("experts", [4, 6])
def test_ranks_with_whole_experts_sum_to_the_whole(
    by_kernels: bool, experts: int, monkeypatch: pytest.MonkeyPatch, triton_interpreter: None
) -> None:
    config = MoEConfig(16, 32, experts, 2, "silu", normalise=True, names=ExpertNames())
    x, whole = torch.randn(7, 16), make_layer(config)
    want, total = whole(x), torch.zeros(7, 16)
    for rank in range(2):
        place = collectives.TensorParallel(rank, 2, expert_parallel=True)
        monkeypatch.setattr(collectives, "_current", place)
        part, count = MoE(config), experts // 2
        own = slice(count * rank, count * (rank + 1))
        part.router.data = whole.router.data
        part.gate_up.matrices.data.copy_(whole.gate_up.matrices[own])
        part.down.matrices.data.copy_(whole.down.matrices[own])
        total += part._by_kernels(x, fused._fused_ops()) if by_kernels else part._by_torch(x)
    torch.testing.assert_close(total, want, atol=1e-4, rtol=1e-4)


def test_of_other_ranks_experts_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    place = collectives.TensorParallel(1, 2, expert_parallel=True)
    monkeypatch.setattr(collectives, "_current", place)
    config = MoEConfig(8, 6, 4, 2, "silu", normalise=True, names=ExpertNames())
    slots = MoE(config).slots("model.layers.0.mlp")
    read = {name for name, slot in slots.items() if slot.shards}
    assert len(slots) == 1 + 3 * 4
    experts = "model.layers.0.mlp.experts"
    kinds = ("gate_proj", "up_proj", "down_proj")
    own = {f"{experts}.{expert}.{kind}.weight" for expert in (2, 3) for kind in kinds}
    assert read == {"model.layers.0.mlp.gate.weight", *own}


def test_experts_that_cannot_be_divided_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    place = collectives.TensorParallel(0, 2, expert_parallel=True)
    monkeypatch.setattr(collectives, "_current", place)
    with pytest.raises(ValueError, match="num_experts 5 cannot be divided over 2 ranks"):
        MoE(MoEConfig(8, 6, 5, 2, "silu", normalise=True, names=ExpertNames()))
