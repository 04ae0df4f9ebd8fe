"""gpt-oss' grouped products against the layer's loop over experts, plain and in MXFP4."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvasir_engine.layers.clamped_moe import ClampedGate, ClampedMoE
from kvasir_engine.layers.moe import ExpertNames, MoEConfig
from kvasir_engine.quantization.mxfp4 import Mxfp4Experts

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HIDDEN, INNER = 96, 160


@pytest.fixture
def kernels(triton_interpreter):
    from kvasir_engine.kernels import expert_routing
    from kvasir_engine.kernels.experts import clamped_experts

    return SimpleNamespace(clamped_experts=clamped_experts, moe_blocks=expert_routing)


def make_layer(experts: int, top_k: int, *, packed: bool) -> ClampedMoE:
    config = MoEConfig(HIDDEN, INNER, experts, top_k, "silu", True, ExpertNames())
    layer = ClampedMoE(config, ClampedGate(alpha=1.702, limit=0.8))
    if packed:
        layer.use(Mxfp4Experts())
    for each in layer.parameters():
        if each.is_floating_point():
            each.data.normal_(std=0.2)
    for matrices in (layer.gate_up, layer.down) if packed else ():
        matrices.weight.data.random_()
        matrices.weight_scale.data.random_(122, 126)
    return layer.to(DEVICE)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("tokens", "inputs"), [(1, 64), (13, 64)])
def test_experts(kernels, monkeypatch, tokens: int, inputs: int, packed: bool) -> None:
    tuning = kernels.clamped_experts.GemmTuning(16, 64, inputs, 1, 2)
    monkeypatch.setattr(kernels.clamped_experts, "clamped_tuning_for", lambda *_: tuning)
    torch.manual_seed(tokens)
    layer = make_layer(6, 3, packed=packed)
    x = torch.randn(tokens, HIDDEN, device=DEVICE)

    got = layer._by_kernels(x, kernels).sum(0)

    want = layer._by_torch(x)
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


def test_tiles_grow_with_the_assignments_of_an_expert(kernels) -> None:
    counts = (32, 256, 768, 2048, 9999)
    chosen = [kernels.clamped_experts.clamped_tuning_for(n, 32) for n in counts]
    assert [tuning.rows for tuning in chosen] == [16, 16, 32, 64, 128]
    assert chosen[0].outputs < chosen[1].outputs


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("kib", [99, 163, 227])
def test_tiles_fit_the_shared_memory(kernels, itemsize: int, kib: int) -> None:
    most = int(0.88 * (kib << 10))
    for tuning in (*kernels.clamped_experts.TILES.values(), kernels.clamped_experts.LARGEST_TILES):
        packed = kernels.clamped_experts.fitted(tuning, itemsize, most, packed=True)
        assert packed.inputs >= 64
        made = kernels.clamped_experts.fitted(tuning, itemsize, most, packed=False)
        assert (made.rows, made.outputs) == (tuning.rows, tuning.outputs)
        assert itemsize * made.stages * (made.rows + 2 * made.outputs) * made.inputs <= most
