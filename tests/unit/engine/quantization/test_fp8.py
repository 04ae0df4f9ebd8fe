"""Layers in float8 against their dequantised weights, from checkpoints and made from plain ones."""

from __future__ import annotations

import pytest
import torch
from support.engines.quantized_reference import fill_slots

from kvasir.models.quantization import Activations, Numbers, Quantization, Scales
from kvasir_engine.device import collectives
from kvasir_engine.device.float8 import FP8, FP8_MAX
from kvasir_engine.kernels.quantized_rows import dequantized, quantized_by_torch
from kvasir_engine.layers.linear import ColumnParallelLinear, RowParallelLinear, even_part
from kvasir_engine.quantization.fp8 import Fp8Linear

CHANNEL = Quantization("fp8", Numbers.FP8, Scales.CHANNEL, Activations.PER_TOKEN)
ONLINE = Quantization("fp8", Numbers.FP8, Scales.CHANNEL, Activations.PER_TOKEN, online=True)
STATIC = Quantization("fp8", Numbers.FP8, Scales.TENSOR, Activations.STATIC)


def merged(quantization: Quantization, *, fused: bool = False) -> ColumnParallelLinear:
    parts = (even_part("gate_proj", 8), even_part("up_proj", 8))
    layer = ColumnParallelLinear(16, parts, fused=fused)
    layer.use(Fp8Linear(quantization))
    return layer


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x, quantised by token, times a dequantised weight."""
    return dequantized(quantized_by_torch(x)) @ weight.t()


def random_fp8(*shape: int) -> torch.Tensor:
    return (100 * torch.randn(*shape)).clamp(-FP8_MAX, FP8_MAX).to(FP8)


@pytest.mark.parametrize("fused", [False, True])
def test_scales_by_channel(fused: bool) -> None:
    layer = merged(CHANNEL, fused=fused)
    weight, scales = random_fp8(16, 16), torch.rand(16, 1)
    if fused:
        stored = {"mlp.gate_up_proj": (weight, scales)}
    else:
        halves = zip(weight.split(8), scales.split(8), strict=True)
        stored = dict(zip(("mlp.gate_proj", "mlp.up_proj"), halves, strict=True))
    checkpoint = {f"{name}.weight": both[0] for name, both in stored.items()}
    checkpoint |= {f"{name}.weight_scale": both[1] for name, both in stored.items()}

    fill_slots(layer.slots("mlp.gate_up_proj"), checkpoint)

    x = torch.randn(3, 16)
    torch.testing.assert_close(layer(x), product(x, weight.float() * scales), rtol=1e-5, atol=1e-3)


def test_merged_matrices_may_differ_in_their_only_scale() -> None:
    layer = merged(STATIC)
    gate, up = random_fp8(8, 16), random_fp8(8, 16)
    one, two = torch.tensor([0.5]), torch.tensor([3.0])
    checkpoint = {
        "gate_proj.weight": gate,
        "gate_proj.weight_scale": one,
        "gate_proj.input_scale": torch.tensor([0.01]),
        "up_proj.weight": up,
        "up_proj.weight_scale": two,
        "up_proj.input_scale": torch.tensor([0.02]),
    }

    fill_slots(layer.slots("gate_up_proj"), checkpoint)

    assert layer.input_scale.tolist() == pytest.approx([0.02])
    x = torch.randn(3, 16)
    rows = (x / 0.02).clamp(-FP8_MAX, FP8_MAX).to(FP8).float() * 0.02
    weight = torch.cat((gate.float() * one, up.float() * two))
    torch.testing.assert_close(layer(x), rows @ weight.t(), rtol=1e-4, atol=1e-3)


def test_plain_weights_are_quantised_as_they_come() -> None:
    layer = merged(ONLINE)
    gate, up = torch.randn(8, 16), 50 * torch.randn(8, 16)

    fill_slots(layer.slots("gate_up_proj"), {"gate_proj.weight": gate, "up_proj.weight": up})

    assert layer.weight.dtype == FP8
    assert layer.weight.float().abs().amax(-1).tolist() == [FP8_MAX] * 16
    x, whole = torch.randn(3, 16), torch.cat((gate, up))
    dequantised = layer.weight.float() * layer.weight_scale
    torch.testing.assert_close(dequantised, whole, rtol=0.07, atol=0.05)
    torch.testing.assert_close(layer(x), product(x, dequantised), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("quantization", [CHANNEL, ONLINE, STATIC])
def test_ranks_sum_to_the_whole(
    quantization: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, bias, x = random_fp8(4, 8), torch.randn(4), torch.randn(3, 8)
    scales = torch.rand(4, 1) if quantization is CHANNEL else torch.tensor([0.7])
    checkpoint = {"o_proj.weight": weight, "o_proj.bias": bias, "o_proj.weight_scale": scales}
    if quantization is ONLINE:
        checkpoint = {"o_proj.weight": weight.float(), "o_proj.bias": bias}
    if quantization is STATIC:
        checkpoint["o_proj.input_scale"] = torch.tensor([0.02])
    total = torch.zeros(3, 4)
    for rank in range(2):
        monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank, 2))
        layer = RowParallelLinear(8, 4, bias=True)
        layer.use(Fp8Linear(quantization))
        fill_slots(layer.slots("o_proj"), checkpoint)
        monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank, 1))
        own = layer.method.prepare(layer, x[:, 4 * rank : 4 * rank + 4])
        total += layer.method.apply(layer, own, layer.bias if rank == 0 else None)

    whole = weight.float() * (1.0 if quantization is ONLINE else scales)
    torch.testing.assert_close(
        total, x @ whole.t() + bias, rtol=0.05, atol=0.06 * total.abs().max()
    )


def test_dummy_weights_are_small_and_the_same_each_time() -> None:
    layers = [merged(STATIC), merged(STATIC)]
    for layer in layers:
        layer.method.fill_randomly(layer, torch.Generator().manual_seed(3))

    one, other = (layer.weight.float() * layer.weight_scale for layer in layers)
    assert torch.equal(one, other)
    assert 0.01 < one.abs().max() <= 0.0201
    assert layers[0].input_scale.item() > 0


def test_plain_inputs_are_prepared_first() -> None:
    layer = merged(CHANNEL)
    with pytest.raises(TypeError, match="not prepared"):
        layer.method.apply(layer, torch.randn(1, 16), None)
