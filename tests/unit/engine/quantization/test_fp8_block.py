"""Layers in float8 with scales of blocks against their dequantised weights."""

from __future__ import annotations

import pytest
import torch
from support.engines.quantized_reference import fill_slots

from kvasir_engine.device import collectives
from kvasir_engine.device.float8 import FP8
from kvasir_engine.kernels.quantized_rows import QuantizedRows, dequantized, grouped_by_torch
from kvasir_engine.layers.linear import ColumnParallelLinear, RowParallelLinear, even_part
from kvasir_engine.layers.mlp import GatedMLP
from kvasir_engine.quantization import fp8_block
from kvasir_engine.quantization.fp8_block import Fp8BlockLinear

METHOD = Fp8BlockLinear("weight_scale_inv")


def dequantised(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    wide = scales.repeat_interleave(128, 0)[: len(weight)]
    return weight.float() * wide.repeat_interleave(128, 1)[:, : weight.shape[1]]


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return dequantized(grouped_by_torch(x)) @ weight.t()


def matrix(outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = -(-outputs // 128), -(-inputs // 128)
    return (100 * torch.randn(outputs, inputs)).to(FP8), torch.rand(*blocks)


def test_merged_matrices() -> None:
    parts = (even_part("gate_proj", 256), even_part("up_proj", 200))
    layer = ColumnParallelLinear(160, parts)
    layer.use(METHOD)
    gate, up, x = matrix(256, 160), matrix(200, 160), torch.randn(3, 160)
    checkpoint = {}
    for name, (weight, scales) in (("gate_proj", gate), ("up_proj", up)):
        checkpoint |= {f"{name}.weight": weight, f"{name}.weight_scale_inv": scales}

    fill_slots(layer.slots("gate_up_proj"), checkpoint)

    whole = torch.cat((dequantised(*gate), dequantised(*up)))
    torch.testing.assert_close(layer(x), product(x, whole), rtol=1e-4, atol=1e-2)


def test_ranks_sum_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, scales = matrix(72, 256)
    x, total = torch.randn(3, 256), torch.zeros(3, 72)
    for rank in range(2):
        monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank, 2))
        layer = RowParallelLinear(256, 72)
        layer.use(METHOD)
        fill_slots(layer.slots("o"), {"o.weight": weight, "o.weight_scale_inv": scales})
        monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank, 1))
        own = x[:, 128 * rank : 128 * rank + 128]
        total += layer.method.apply(layer, layer.method.prepare(layer, own), None)

    torch.testing.assert_close(total, product(x, dequantised(weight, scales)), rtol=1e-4, atol=1e-2)


def test_a_block_cannot_be_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(1, 2))
    layer = RowParallelLinear(128, 72)
    layer.use(METHOD)
    with pytest.raises(ValueError, match="within one, at 64; choose another tensor-parallel"):
        layer.slots("o")


def test_dummy_weights_are_small() -> None:
    layer = RowParallelLinear(256, 128)
    layer.use(METHOD)
    METHOD.fill_randomly(layer, torch.Generator().manual_seed(3))
    assert 0.01 < dequantised(layer.weight, layer.weight_scale).abs().max() <= 0.0201


def test_plain_inputs_are_prepared_first() -> None:
    layer = RowParallelLinear(256, 128)
    layer.use(METHOD)
    with pytest.raises(TypeError, match="not prepared"):
        METHOD.apply(layer, torch.randn(1, 256), None)


def test_a_layers_inputs_are_quantised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def quantise(x: torch.Tensor) -> QuantizedRows:
        sizes.append(x.shape[1])
        return grouped_by_torch(x)

    monkeypatch.setattr(fp8_block, "grouped_by_torch", quantise)
    mlp = GatedMLP(128, 256, "silu", bias=False)
    for layer in (mlp.gate_up_proj, mlp.down_proj):
        layer.use(METHOD)
        METHOD.fill_randomly(layer, torch.Generator().manual_seed(3))

    mlp(torch.randn(3, 128))

    assert sizes == [128, 256]
