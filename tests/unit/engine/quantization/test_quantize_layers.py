"""Which layers of a model get which method."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from kvasir.models.quantization import Activations, Numbers, Packing, Quantization, Scales
from kvasir_engine.device import collectives
from kvasir_engine.layers.linear import RowParallelLinear
from kvasir_engine.layers.mlp import GatedMLP
from kvasir_engine.layers.weights import deferred_weights
from kvasir_engine.quantization.fp8 import Fp8Linear
from kvasir_engine.quantization.int4 import Int4Linear
from kvasir_engine.quantization.plain import PLAIN
from kvasir_engine.quantization.quantize_layers import (
    UnsupportedQuantizationError,
    method_for,
    quantize_layers,
)

FP8 = Quantization("fp8", Numbers.FP8, Scales.CHANNEL, Activations.PER_TOKEN)


INT4 = Quantization("gptq", Numbers.INT4, Scales.GROUP, group=128, packing=Packing.GPTQ)


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


def test_a_head_that_is_quantised_is_refused(model: Model) -> None:
    model.lm_head = None
    quantize_layers(model, FP8)
    model.lm_head = nn.Linear(8, 4)
    for name in ("lm_head", "re:.*lm_head", "language_model.lm_head"):
        quantize_layers(model, replace(FP8, ignored=(name,)))
    with pytest.raises(UnsupportedQuantizationError, match="lm_head is quantised, which"):
        quantize_layers(model, FP8)


def test_half_of_a_merged_layer_cannot_be_ignored(model: Model) -> None:
    with pytest.raises(UnsupportedQuantizationError, match=r"mlp\.gate_proj stays plain while"):
        quantize_layers(model, replace(FP8, ignored=("gate_proj",)))


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        (replace(INT4, group=48), "group_size': groups of 48 inputs .* or -1 for one"),
        (replace(FP8, scales=Scales.BLOCK, block=(128, 128)), "inputs per_token"),
        (replace(FP8, scales=Scales.GROUP), "scales of a group"),
        (replace(FP8, activations=None), "inputs that stay plain"),
    ],
)
def test_formats_without_a_method_are_refused(quantization: Quantization, words: str) -> None:
    with pytest.raises(UnsupportedQuantizationError, match=words):
        method_for(quantization)


def test_mxfp4_is_for_the_experts_of_gpt_oss_alone(model: Model) -> None:
    packed = replace(FP8, numbers=Numbers.MXFP4, scales=Scales.GROUP, group=32, ignored=())
    with pytest.raises(
        UnsupportedQuantizationError, match=r"outside gpt-oss' experts, in \S+, which is"
    ):
        quantize_layers(model, packed)


def test_blocks_have_a_method_by_the_name_of_their_scales() -> None:
    blocks = replace(FP8, scales=Scales.BLOCK, activations=Activations.PER_GROUP, block=(128, 128))
    layer = RowParallelLinear(128, 128)
    for quantization, name in (
        (blocks, "weight_scale_inv"),
        (replace(blocks, method="compressed-tensors"), "weight_scale"),
    ):
        layer.use(method_for(quantization))
        assert layer.slots("o").keys() == {"o.weight", f"o.{name}"}


@pytest.mark.parametrize("group", [0, 32, 64, 128, 256])
def test_weights_of_4_bits_have_a_method(group: int) -> None:
    assert isinstance(method_for(replace(INT4, group=group)), Int4Linear)


def test_reordered_inputs_are_refused_with_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    reordered = replace(INT4, reordered=True)
    assert isinstance(method_for(reordered), Int4Linear)
    monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(0, 2))
    with pytest.raises(
        UnsupportedQuantizationError, match=r"among 2 ranks; set --tensor-parallel-size 1"
    ):
        method_for(reordered)
