"""gpt-oss' experts against the same computed densely, and their ways from the checkpoint."""

from __future__ import annotations

import pytest
import torch
from support.engines.mxfp4_reference import mxfp4
from support.engines.quantized_reference import fill_slots

from kvasir_engine.device import collectives
from kvasir_engine.layers.clamped_moe import ClampedGate, ClampedMoE
from kvasir_engine.layers.moe import ExpertNames, MoEConfig
from kvasir_engine.quantization.mxfp4 import Mxfp4Experts
from kvasir_engine.quantization.plain import PLAIN

HIDDEN, INNER, EXPERTS, TOP_K = 64, 224, 5, 2
NAME = "model.layers.0.mlp"


def make_layer() -> ClampedMoE:
    config = MoEConfig(HIDDEN, INNER, EXPERTS, TOP_K, "silu", normalise=True, names=ExpertNames())
    return ClampedMoE(config, ClampedGate(alpha=1.702, limit=0.6))


def make_checkpoint() -> dict[str, torch.Tensor]:
    """Plain, of numbers that MXFP4 has, so that both kinds compute the same."""
    numbers = torch.tensor([-6.0, -3.0, -1.0, 0.0, 0.5, 2.0, 4.0, 6.0]) / 32

    def matrices(*shape: int) -> torch.Tensor:
        drawn = numbers[torch.randint(0, 8, shape)]
        drawn[:, ::32] = 6.0 / 32
        return drawn

    return {
        f"{NAME}.router.weight": torch.randn(EXPERTS, HIDDEN),
        f"{NAME}.router.bias": torch.randn(EXPERTS),
        f"{NAME}.experts.gate_up_proj": matrices(EXPERTS, HIDDEN, 2 * INNER),
        f"{NAME}.experts.gate_up_proj_bias": torch.randn(EXPERTS, 2 * INNER),
        f"{NAME}.experts.down_proj": matrices(EXPERTS, INNER, HIDDEN),
        f"{NAME}.experts.down_proj_bias": torch.randn(EXPERTS, HIDDEN),
    }


def packed(checkpoint: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same in MXFP4."""
    made = {}
    for name, tensor in checkpoint.items():
        if name.endswith("_proj"):
            made[f"{name}_blocks"], made[f"{name}_scales"] = mxfp4(tensor.transpose(1, 2))
        else:
            made[name] = tensor
    return made


def written_out(x: torch.Tensor, c: dict[str, torch.Tensor]) -> torch.Tensor:
    """Each token's experts by the formula."""
    rows = []
    for token in x:
        scores = c[f"{NAME}.router.weight"] @ token + c[f"{NAME}.router.bias"]
        top = scores.topk(TOP_K)
        row = torch.zeros(HIDDEN)
        for weight, expert in zip(top.values.softmax(0), top.indices, strict=True):
            both = token @ c[f"{NAME}.experts.gate_up_proj"][expert]
            both = both + c[f"{NAME}.experts.gate_up_proj_bias"][expert]
            gate, up = both[::2].clamp(max=0.6), both[1::2].clamp(-0.6, 0.6)
            inner = (up + 1) * gate * torch.sigmoid(1.702 * gate)
            out = inner @ c[f"{NAME}.experts.down_proj"][expert]
            row += weight * (out + c[f"{NAME}.experts.down_proj_bias"][expert])
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("in_mxfp4", [False, True])
def test_weighted_sum_of_the_chosen_experts(in_mxfp4: bool) -> None:
    layer, checkpoint = make_layer(), make_checkpoint()
    if in_mxfp4:
        layer.use(Mxfp4Experts())
    fill_slots(layer.slots(NAME), packed(checkpoint) if in_mxfp4 else checkpoint)
    x = torch.randn(7, HIDDEN)

    torch.testing.assert_close(layer(x), written_out(x, checkpoint), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("in_mxfp4", "ranks"), [(False, 2), (True, 2), (True, 4)])
def test_ranks_sum_to_the_whole(
    in_mxfp4: bool, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, x = make_checkpoint(), torch.randn(7, HIDDEN)
    total = torch.zeros_like(x)
    for rank in range(ranks):
        monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank, ranks))
        layer = make_layer()
        if in_mxfp4:
            layer.use(Mxfp4Experts())
        fill_slots(layer.slots(NAME), packed(checkpoint) if in_mxfp4 else checkpoint)
        total += layer._by_torch(x)

    torch.testing.assert_close(total, written_out(x, checkpoint), atol=1e-4, rtol=1e-4)


def test_a_rank_without_channels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(0, 8))
    layer = make_layer()
    with pytest.raises(ValueError, match="for each of 8 ranks; choose a lower"):
        layer.use(Mxfp4Experts())


def test_other_methods_are_refused() -> None:
    layer = make_layer()
    layer.use(PLAIN)
    with pytest.raises(ValueError, match="plain or MXFP4"):
        layer.use(object())  # type: ignore[arg-type]


def test_its_modules_are_named_as_configs_name_them() -> None:
    names = make_layer().modules_in_checkpoint("model.layers.3.mlp")
    assert names == [f"model.layers.3.mlp.experts.{kind}_proj" for kind in ("gate_up", "down")]
