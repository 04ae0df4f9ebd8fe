"""Experts' matrices in MXFP4 against transformers' reading of the same checkpoint."""

from __future__ import annotations

import pytest
import torch
from support.engines.mxfp4_reference import NUMBERS as VALUES
from support.engines.mxfp4_reference import mxfp4
from torch import nn
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from kvasir_engine.layers.moe import ExpertLinear, ExpertNames, MoE, MoEConfig
from kvasir_engine.quantization import mxfp4 as method
from kvasir_engine.quantization.mxfp4 import Mxfp4Experts, dequantized, repacked, store_halves

EXPERTS, OUTPUTS, INPUTS = 3, 6, 64
CHANNELS = {False: INPUTS, True: OUTPUTS // 2}


def layer_in_mxfp4() -> ExpertLinear:
    layer = ExpertLinear(EXPERTS, INPUTS, OUTPUTS)
    layer.use(Mxfp4Experts())
    return layer


@pytest.mark.parametrize("alternating", [False, True])
def test_all_numbers_and_scales_are_what_transformers_reads(alternating: bool) -> None:
    layer = layer_in_mxfp4()
    blocks = torch.randint(0, 256, (EXPERTS, OUTPUTS, INPUTS // 32, 16)).to(torch.uint8)
    scales = torch.randint(90, 150, blocks.shape[:3]).to(torch.uint8)
    read = {"_blocks": blocks, "_scales": scales}

    for packed in Mxfp4Experts().packed(layer, CHANNELS[alternating], alternating=alternating):
        assert packed.target.shape == read[packed.suffix].shape
        packed.store(read[packed.suffix])

    want = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    for expert in range(EXPERTS):
        found = dequantized(layer.weight[expert], layer.weight_scale[expert])
        ordered = torch.cat((want[expert][::2], want[expert][1::2]))
        assert torch.equal(found, ordered if alternating else want[expert])


def test_a_product_is_of_one_experts_rows() -> None:
    layer = layer_in_mxfp4()
    layer.weight.data.random_()
    layer.weight_scale.data.random_(120, 130)
    x, bias = torch.randn(4, INPUTS), torch.randn(OUTPUTS)

    found = layer.method.apply(layer, layer.prepare(x), bias, rows=layer.rows_of(2))

    matrix = dequantized(layer.weight[2], layer.weight_scale[2])
    torch.testing.assert_close(found, nn.functional.linear(x, matrix, bias))


def test_every_bit_of_a_word_is_one_numbers() -> None:
    seen = torch.zeros(8, 16, dtype=torch.int32)
    for number in range(32):
        for bit in range(4):
            codes = torch.zeros(32, dtype=torch.uint8)
            codes[number] = 1 << bit
            words = repacked(codes[::2] | (codes[1::2] << 4)).view(torch.int16).int()
            assert words.nonzero().tolist() == [[number % 8]]
            seen += words[:, None] >> torch.arange(16) & 1
    assert torch.equal(seen, torch.ones_like(seen))


def test_numbers_that_the_format_has_survive_it() -> None:
    assert list(method.NUMBERS) == VALUES.tolist()
    numbers = torch.cat((VALUES, -VALUES)).repeat(4).view(1, 64) * 0.25
    blocks, scales = mxfp4(numbers)
    found = dequantized(repacked(blocks).transpose(0, 1), scales.transpose(0, 1))
    assert torch.equal(found, numbers)


def test_halves_may_have_more_rows_than_are_stored() -> None:
    to = torch.zeros(8, 1)
    store_halves(to, torch.arange(1.0, 7.0)[:, None])
    assert to.flatten().tolist() == [1, 3, 5, 0, 2, 4, 6, 0]


def test_experts_with_a_tensor_a_matrix_are_refused() -> None:
    block = MoE(MoEConfig(64, 32, 2, 1, "silu", normalise=True, names=ExpertNames()))
    block.use(Mxfp4Experts())
    with pytest.raises(ValueError, match="MXFP4 weights are read of gpt-oss' experts alone"):
        block.slots("model.layers.0.mlp")


def test_random_weights_are_small() -> None:
    layer = layer_in_mxfp4()
    layer.method.fill_randomly(layer, torch.Generator().manual_seed(0))
    found = dequantized(layer.weight[0], layer.weight_scale[0])
    assert 0 < found.abs().max() < 0.03
