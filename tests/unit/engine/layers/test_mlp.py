"""The gated MLP against its formula in float64, from checkpoints of both layouts."""

from __future__ import annotations

import pytest
import torch

from kvasir_engine.layers.mlp import GatedMLP
from kvasir_engine.layers.weights import model_slots

HIDDEN, WIDTH = 6, 10


def filled(*, bias: bool, fused: bool) -> tuple[GatedMLP, dict[str, torch.Tensor]]:
    """An MLP, and the checkpoint tensors its parameters were filled from."""
    mlp = GatedMLP(HIDDEN, WIDTH, "silu", bias=bias, fused=fused)
    generator = torch.Generator().manual_seed(0)
    checkpoint = {}
    for name, slot in model_slots(mlp).items():
        checkpoint[name] = source = torch.randn(slot.shape, generator=generator)
        for piece in slot.shards:
            piece.target.copy_(source.narrow(piece.dim, piece.start, piece.stop - piece.start))
    return mlp, checkpoint


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_it_is_down_of_activated_gate_times_up(bias: bool, fused: bool) -> None:
    mlp, checkpoint = filled(bias=bias, fused=fused)
    tensors = {name: tensor.double() for name, tensor in checkpoint.items()}

    def project(name: str, x: torch.Tensor) -> torch.Tensor:
        out = x @ tensors[f"{name}.weight"].T
        return out + tensors[f"{name}.bias"] if bias else out

    x = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))
    if fused:
        gate, up = project("gate_up_proj", x.double()).chunk(2, -1)
    else:
        gate, up = (project(name, x.double()) for name in ("gate_proj", "up_proj"))
    expected = project("down_proj", gate / (1 + torch.exp(-gate)) * up)
    torch.testing.assert_close(mlp(x).double(), expected, atol=1e-4, rtol=1e-5)


def test_the_layouts_ask_for_their_checkpoints_names() -> None:
    apart, fused = (model_slots(filled(bias=False, fused=f)[0]).keys() for f in (False, True))
    assert apart == {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}
    assert fused == {"gate_up_proj.weight", "down_proj.weight"}
