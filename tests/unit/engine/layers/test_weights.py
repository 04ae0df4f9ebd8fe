"""Which checkpoint tensors a module asks for."""

from __future__ import annotations

import torch
from torch import nn

from kvasir_engine.layers.linear import RowParallelLinear
from kvasir_engine.layers.norm import RMSNorm
from kvasir_engine.layers.weights import WeightShard, model_slots, parameter, siblings


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = RMSNorm(3, 1e-6)
        self.proj = RowParallelLinear(3, 2)
        self.act = nn.SiLU()


def test_a_models_slots_have_full_names_and_whole_shapes() -> None:
    slots = model_slots(nn.ModuleDict({"layers": nn.ModuleList([Layer(), Layer()])}))
    assert {name: slot.shape for name, slot in slots.items()} == {
        "layers.0.norm.weight": (3,),
        "layers.0.proj.weight": (2, 3),
        "layers.1.norm.weight": (3,),
        "layers.1.proj.weight": (2, 3),
    }


def test_what_is_written_to_a_slot_is_the_modules_parameter() -> None:
    layer = Layer()
    (piece,) = model_slots(layer)["norm.weight"].shards
    piece.target.fill_(5)
    assert layer.norm.weight.tolist() == [5, 5, 5]


def test_a_piece_ends_where_its_target_does() -> None:
    assert WeightShard(torch.empty(4, 7), dim=0, start=3).stop == 7
    assert WeightShard(torch.empty(4, 7), dim=1, start=3).stop == 10


def test_siblings_stand_beside_the_module_also_at_the_top() -> None:
    assert list(siblings("model.layers.0.qkv_proj", ("q", "k"))) == [
        "model.layers.0.q",
        "model.layers.0.k",
    ]
    assert list(siblings("qkv_proj", ("q",))) == ["q"]


def test_parameters_ask_for_no_gradient() -> None:
    made = parameter(2, 3)
    assert (tuple(made.shape), made.requires_grad) == ((2, 3), False)
