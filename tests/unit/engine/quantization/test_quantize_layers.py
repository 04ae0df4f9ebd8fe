"""Which layers of a model get which method."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from kvasir.models.quantization import Activations, Numbers, Quantization, Scales
from kvasir_engine.layers.linear import RowParallelLinear
from kvasir_engine.layers.mlp import GatedMLP
from kvasir_engine.layers.weights import deferred_weights
from kvasir_engine.quantization.fp8 import Fp8Linear
from kvasir_engine.quantization.plain import PLAIN
from kvasir_engine.quantization.quantize_layers import (
    UnsupportedQuantizationError,
    method_for,
    quantize_layers,
)

FP8 = Quantization("fp8", Numbers.FP8, Scales.CHANNEL, Activations.PER_TOKEN)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = GatedMLP(8, 16, "silu", bias=False)


@pytest.fixture
def model() -> Model:
    with deferred_weights():
        return Model()


def test_layers_get_the_method_and_memory(model: Model) -> None:
    quantize_layers(model, FP8)

    for layer in (model.mlp.gate_up_proj, model.mlp.down_proj):
        assert isinstance(layer.method, Fp8Linear)
        assert not layer.weight.is_meta


def test_ignored_layers_stay_plain(model: Model) -> None:
    quantize_layers(model, replace(FP8, ignored=("mlp.gate_proj", "up_proj")))

    assert model.mlp.gate_up_proj.method is PLAIN
    assert not model.mlp.gate_up_proj.weight.is_meta
    assert isinstance(model.mlp.down_proj.method, Fp8Linear)


def test_half_of_a_merged_layer_cannot_be_ignored(model: Model) -> None:
    with pytest.raises(UnsupportedQuantizationError, match=r"mlp\.gate_proj stays plain while"):
        quantize_layers(model, replace(FP8, ignored=("gate_proj",)))


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        (replace(FP8, numbers=Numbers.INT4, scales=Scales.GROUP, group=128), "int4 weights"),
        (replace(FP8, scales=Scales.BLOCK, block=(128, 128)), "inputs per_token"),
        (replace(FP8, scales=Scales.GROUP), "scales of a group"),
        (replace(FP8, activations=None), "inputs that stay plain"),
    ],
)
def test_formats_without_a_method_are_refused(quantization: Quantization, words: str) -> None:
    with pytest.raises(UnsupportedQuantizationError, match=words):
        method_for(quantization)


def test_blocks_have_a_method_by_the_name_of_their_scales() -> None:
    blocks = replace(FP8, scales=Scales.BLOCK, activations=Activations.PER_GROUP, block=(128, 128))
    layer = RowParallelLinear(128, 128)
    for quantization, name in (
        (blocks, "weight_scale_inv"),
        (replace(blocks, method="compressed-tensors"), "weight_scale"),
    ):
        layer.use(method_for(quantization))
        assert layer.slots("o").keys() == {"o.weight", f"o.{name}"}
