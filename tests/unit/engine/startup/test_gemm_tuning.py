"""Sizes that are timed first."""

from __future__ import annotations

import torch
from support.engines.int4_checkpoints import Rounding, quantization_config
from torch import nn

from kvasir.models.quantization_config import parse_quantization
from kvasir_engine.kernels.int4.int4_weights import dequantized_by_torch
from kvasir_engine.layers.linear import RowParallelLinear
from kvasir_engine.quantization.int4 import Int4Linear
from kvasir_engine.runner.graphs.full import decode_sizes
from kvasir_engine.startup.gemm_tuning import MIXED_STEP_TOKENS, dequantized_by_shape, spread


def test_few_sizes_stand_for_all() -> None:
    sizes = [size for size in decode_sizes(256) if size >= 17] + list(MIXED_STEP_TOKENS)
    first = spread(sizes)
    assert first[0] == max(sizes)
    assert len(first) <= 16 < len(sizes) / 2
    # Each is served by one at most half an octave above it.
    assert all(min(each for each in first if each >= size) <= 1.5 * size for size in sizes)


def test_one_size_is_its_own() -> None:
    assert spread([64]) == [64]
    assert spread([]) == []


def test_two_matrices_of_each_shape_in_4_bits_are_tuned(triton_interpreter) -> None:
    config = {"quantization_config": quantization_config(Rounding(32), "awq", [])}
    parsed = parse_quantization(config)
    assert parsed is not None
    layers = [RowParallelLinear(64, 16).bfloat16() for _ in range(4)]
    layers[0].bias = nn.Parameter(torch.zeros(16))
    for layer in layers[:3]:
        layer.dtype = torch.bfloat16
    layers.append(RowParallelLinear(64, 16))
    for layer in layers[:4]:
        layer.use(Int4Linear(parsed))
        layer.method.fill_randomly(layer, torch.Generator().manual_seed(1))
    layers[3].dtype = torch.float32

    found = dequantized_by_shape(nn.ModuleList(layers))

    assert [[matrix.shape for matrix in each] for each in found] == [[(16, 64), (16, 64)]]
    weight = layers[1].method.int4_weight(layers[1])
    assert weight is not None
    assert torch.equal(found[0][0], dequantized_by_torch(weight, 64))
