"""Grouped products of experts against the layer's loop over experts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvasir_engine.layers.moe import ExpertNames, MoE, MoEConfig

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernels(triton_interpreter):
    from kvasir_engine.kernels import expert_routing, grouped_gemm

    return SimpleNamespace(moe=grouped_gemm, moe_blocks=expert_routing)


def make_layer(act: str, experts: int, top_k: int) -> MoE:
    layer = MoE(
        MoEConfig(
            hidden_size=24,
            intermediate_size=40,
            num_experts=experts,
            experts_per_token=top_k,
            act=act,
            normalise=experts == 4,
            names=ExpertNames(),
        )
    )
    for matrix in layer.parameters():
        matrix.data.normal_(std=0.4)
    return layer.to(DEVICE)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 13])
@pytest.mark.parametrize(("experts", "top_k", "act"), [(4, 2, "silu"), (16, 3, "gelu")])
@pytest.mark.parametrize("tile", [16, 32])
def test_experts(
    kernels, monkeypatch, tokens: int, experts: int, top_k: int, act: str, tile: int
) -> None:
    tuning = kernels.moe.GemmTuning(16, tile, 16, 1, 2)
    monkeypatch.setattr(kernels.moe, "moe_tuning_for", lambda *_: tuning)
    torch.manual_seed(tokens)
    layer = make_layer(act, experts, top_k)
    x = torch.randn(tokens, 24, device=DEVICE)
    got = layer._by_kernels(x, kernels)
    want = layer._by_torch(x)
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("compared", [True, False])
def test_blocks_hold_every_assignment_once(kernels, monkeypatch, compared: bool) -> None:
    torch.manual_seed(0)
    if not compared:
        monkeypatch.setattr(kernels.moe_blocks, "MAX_COMPARED", 0)
    chosen = torch.stack([torch.randperm(9)[:3] for _ in range(30)]).int().to(DEVICE)
    chosen[chosen == 4] = 8
    blocks = kernels.moe_blocks.make_expert_blocks(chosen, 9, rows=4)
    flat, seen = chosen.flatten().tolist(), []
    for expert, first, end in zip(
        blocks.experts.tolist(), blocks.first.tolist(), blocks.end.tolist(), strict=True
    ):
        if expert < 9:
            part = blocks.order[first : min(first + 4, end)].tolist()
            assert part
            assert {flat[assignment] for assignment in part} == {expert}
            seen += part
    assert sorted(seen) == list(range(90))


@pytest.mark.parametrize("mean", [1, 20, 100, 1000])
@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("kib", [99, 163, 227])
def test_tiles_fit_the_shared_memory(kernels, mean: int, itemsize: int, kib: int) -> None:
    tuning = kernels.moe.moe_tuning_for(mean, 1, itemsize)
    made, most = tuning.fitted(itemsize, int(0.88 * (kib << 10))), int(0.88 * (kib << 10))
    assert itemsize * made.stages * (made.rows + made.outputs) * made.inputs <= most
    # Rows are those of the blocks that assignments were cut into.
    assert (made.rows, made.outputs) == (tuning.rows, tuning.outputs)
    assert made.stages >= 2
    if kib == 227:
        assert made == tuning


def test_there_is_an_end_to_making_tiles_less(kernels) -> None:
    made = kernels.moe.LARGEST_TILES.fitted(4, 1)
    assert (made.inputs, made.stages) == (kernels.moe.MIN_INPUTS, 2)
