"""Layers in 4 bits against the dequantised numbers of each tool's checkpoint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.engines.int4_checkpoints import (
    TOOLS,
    RoundedWeight,
    Rounding,
    Tool,
    quantization_config,
    rounded,
    stored_tensors,
)
from support.engines.quantized_reference import fill_slots
from torch.nn.functional import silu

from kvasir.models.quantization_config import parse_quantization
from kvasir_engine.device import collectives
from kvasir_engine.kernels.quantized_rows import quantized_by_torch
from kvasir_engine.layers.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    even_part,
)
from kvasir_engine.quantization import int4
from kvasir_engine.quantization.int4 import Int4Linear

Filled = ColumnParallelLinear | RowParallelLinear
REORDERED = Rounding(32, symmetric=True, reordered=True)
ROUNDINGS = [
    Rounding(32),
    Rounding(64, symmetric=True),
    Rounding(128),
    Rounding(-1),
    Rounding(-1, symmetric=True),
]


def method(how: Rounding, tool: Tool) -> Int4Linear:
    parsed = parse_quantization({"quantization_config": quantization_config(how, tool, [])})
    assert parsed is not None
    return Int4Linear(parsed)


def expected(how: Rounding, tool: Tool, tensors: dict[str, torch.Tensor]) -> dict:
    """What is read of them: zero points that are all alike, and an order that is none, are not."""
    kept = tensors
    if tool != "compressed-tensors":
        unread = [".qzeros"] * how.symmetric + [".g_idx"] * (not how.reordered)
        kept = {n: t for n, t in tensors.items() if not n.endswith(tuple(unread) or ("none",))}
    return {name: t for name, t in kept.items() if not name.endswith(".weight_shape")}


def fill(layer: Filled, name: str, weights: dict[str, RoundedWeight], how, tool) -> None:
    checkpoint: dict[str, torch.Tensor] = {}
    for module, weight in weights.items():
        checkpoint |= expected(how, tool, stored_tensors(module, weight, how, tool))
    fill_slots(layer.slots(name), checkpoint)
    layer.method.finish(layer)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("how", ROUNDINGS)
@pytest.mark.parametrize("fused", [False, True])
def test_merged_matrices_are_the_dequantised_numbers(how: Rounding, tool: Tool, fused) -> None:
    torch.manual_seed(1)
    parts = (even_part("gate_proj", 40), even_part("up_proj", 24))
    layer = ColumnParallelLinear(256, parts, fused=fused)
    layer.use(method(how, tool))
    gate, up, x = torch.randn(40, 256), 30 * torch.randn(24, 256), torch.eye(256)
    if fused:
        weights = {"gate_up_proj": rounded(torch.cat((gate, up)), how)}
    else:
        weights = {"gate_proj": rounded(gate, how), "up_proj": rounded(up, how)}

    fill(layer, "gate_up_proj", weights, how, tool)

    whole = torch.cat([weight.dequantised() for weight in weights.values()])
    assert torch.equal(layer(x), whole.t())
    assert (whole - torch.cat((gate, up))).abs().max() > 0


@pytest.mark.parametrize("tool", ["gptq", "compressed-tensors"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_inputs_in_another_order(tool: Tool, symmetric: bool) -> None:
    how = Rounding(32, symmetric=symmetric, reordered=True)
    parts = (even_part("q_proj", 16), even_part("k_proj", 8))
    layer = ColumnParallelLinear(160, parts, bias=True)
    layer.use(method(how, tool))
    weights = {name: rounded(torch.randn(n, 160), how) for name, n in (("q", 16), ("k", 8))}
    assert layer.bias is not None
    layer.bias.data.normal_()
    checkpoint = {}
    for name, weight in weights.items():
        made = stored_tensors(f"{name}_proj", weight, how, tool)
        checkpoint |= expected(how, tool, made)
    slots = {n: s for n, s in layer.slots("qkv").items() if not n.endswith(".bias")}

    fill_slots(slots, checkpoint)
    layer.method.finish(layer)

    whole = torch.cat([weight.dequantised() for weight in weights.values()])
    assert torch.equal(layer(torch.eye(160)), whole.t() + layer.bias)
    assert layer.input_order is not None
    assert not torch.equal(layer.input_order, torch.arange(160))


def test_an_order_that_is_none_costs_nothing() -> None:
    layer = RowParallelLinear(128, 8)
    layer.use(method(REORDERED, "gptq"))
    weight = rounded(torch.randn(8, 128), Rounding(32, symmetric=True))

    fill(layer, "o", {"o": weight}, REORDERED, "gptq")

    assert layer.input_order is None
    assert torch.equal(layer(torch.eye(128)), weight.dequantised().t())


def test_merged_matrices_of_different_orders_are_refused() -> None:
    parts = (even_part("q_proj", 8), even_part("k_proj", 8))
    layer = ColumnParallelLinear(64, parts)
    layer.use(method(REORDERED, "gptq"))
    one = rounded(torch.randn(8, 64), REORDERED)
    other = rounded(torch.randn(8, 64), Rounding(32, symmetric=True))
    with pytest.raises(ValueError, match=r"g_idx differs between .* without desc_act"):
        fill(layer, "qkv", {"q_proj": one, "k_proj": other}, REORDERED, "gptq")


def test_groups_of_another_size_are_refused() -> None:
    layer = RowParallelLinear(128, 8)
    layer.use(method(REORDERED, "gptq"))
    weight = rounded(torch.randn(8, 128), REORDERED)
    uneven = RoundedWeight(weight.numbers, weight.scales, weight.zeros, weight.groups.clamp(max=2))
    with pytest.raises(ValueError, match="g_idx does not make groups of 32 inputs"):
        fill(layer, "o", {"o": uneven}, REORDERED, "gptq")


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("how", ROUNDINGS)
def test_ranks_sum_to_the_whole(how: Rounding, tool: Tool, monkeypatch) -> None:
    weight, x = rounded(torch.randn(24, 256), how), torch.randn(3, 256)
    total = torch.zeros(3, 24)
    for rank in range(2):
        monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank, 2))
        layer = RowParallelLinear(256, 24)
        layer.use(method(how, tool))
        fill(layer, "o", {"o": weight}, how, tool)
        monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank, 1))
        total += layer.method.apply(layer, x[:, 128 * rank : 128 * rank + 128], None)

    torch.testing.assert_close(total, x @ weight.dequantised().t(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_has_its_outputs(rank: int, tool: Tool, monkeypatch) -> None:
    how = Rounding(64)
    gate, up = rounded(torch.randn(32, 64), how), rounded(torch.randn(16, 64), how)
    monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank, 2))
    layer = ColumnParallelLinear(64, (even_part("gate_proj", 32), even_part("up_proj", 16)))
    layer.use(method(how, tool))

    fill(layer, "mlp", {"gate_proj": gate, "up_proj": up}, how, tool)

    halves = [each.dequantised().chunk(2)[rank] for each in (gate, up)]
    assert torch.equal(layer(torch.eye(64)), torch.cat(halves).t())


@pytest.mark.parametrize("tool", TOOLS)
def test_a_group_cannot_be_divided(tool: Tool, monkeypatch) -> None:
    monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(1, 2))
    layer = RowParallelLinear(128, 8)
    layer.use(method(Rounding(128), tool))
    with pytest.raises(ValueError, match=r"of 128 weights share .* at 64; choose another tensor"):
        layer.slots("o")


def test_half_precision_multiplies_in_its_own_type() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        layer = RowParallelLinear(64, 8)
        layer.use(method(Rounding(32), "awq"))
    finally:
        torch.set_default_dtype(torch.float32)
    weight = rounded(torch.randn(8, 64), Rounding(32))
    fill(layer, "o", {"o": weight}, Rounding(32), "awq")

    got = layer(torch.eye(64, dtype=torch.bfloat16))

    torch.testing.assert_close(got.float(), weight.dequantised().t(), rtol=0.008, atol=1e-3)


@pytest.mark.parametrize("how", [Rounding(32), Rounding(32, symmetric=True), REORDERED])
def test_dummy_weights_are_small(how: Rounding) -> None:
    layer = RowParallelLinear(64, 32)
    layer.use(method(how, "gptq"))
    layer.method.fill_randomly(layer, torch.Generator().manual_seed(3))
    weight = layer(torch.eye(64))
    assert 0.015 < weight.abs().max() <= 0.0201
    assert abs(weight.mean()) < 0.003


def test_experts_in_another_order_are_refused() -> None:
    layer = RowParallelLinear(64, 32)
    layer.experts = 2
    with pytest.raises(
        ValueError, match=r"experts .*desc_act, actorder\) are not supported; use a"
    ):
        layer.use(method(REORDERED, "gptq"))


def test_quantised_inputs_are_refused() -> None:
    layer = RowParallelLinear(64, 8)
    layer.use(method(Rounding(32), "awq"))
    with pytest.raises(TypeError, match="4 bits was given quantised"):
        layer(quantized_by_torch(torch.randn(2, 64)))


@pytest.fixture
def kernels(triton_interpreter, monkeypatch) -> Any:
    """The kernels, as on a GPU; plain products by torch."""
    from kvasir_engine.kernels.int4 import int4_linear as of_int4
    from kvasir_engine.kernels.int4.int4_dequantize import dequantized
    from kvasir_engine.layers.fused import Int4Ops

    ops = Int4Ops(
        of_int4.int4_linear, of_int4.int4_gated, of_int4.int4_parts, dequantized, _no_experts, 4
    )
    monkeypatch.setattr(int4, "fused_ops", lambda _: SimpleNamespace(int4=ops))
    return ops


def _no_experts(*_: object) -> torch.Tensor:
    raise AssertionError


@pytest.mark.parametrize("tokens", [1, 4, 5])
@pytest.mark.parametrize("how", [Rounding(64), REORDERED])
def test_kernels_multiply_as_torch_does(kernels, tokens: int, how: Rounding) -> None:
    layer, x = RowParallelLinear(1024, 16, bias=True), torch.randn(tokens, 1024)
    layer.use(method(how, "gptq"))
    weight = rounded(torch.randn(16, 1024), how)
    assert layer.bias is not None
    layer.bias.data.normal_()
    checkpoint = expected(how, "gptq", stored_tensors("o", weight, how, "gptq"))
    fill_slots(layer.slots("o"), checkpoint | {"o.bias": layer.bias.data.clone()})
    layer.method.finish(layer)
    want = x @ weight.dequantised().t() + layer.bias

    whole = layer.method.apply(layer, x, layer.bias)
    parts = layer.method.parts(layer, x, layer.bias)
    gated = layer.method.gated(layer, x, layer.bias, "silu")

    torch.testing.assert_close(whole, want, atol=1e-3, rtol=1e-4)
    assert parts is not None
    torch.testing.assert_close(parts.sum(0), want, atol=1e-3, rtol=1e-4)
    first, second = want.chunk(2, dim=-1)
    torch.testing.assert_close(gated, silu(first) * second, atol=1e-2, rtol=1e-4)
