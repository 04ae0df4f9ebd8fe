import pytest
import torch

from kvasir_engine.kernels.quantized_rows import quantized_by_torch
from kvasir_engine.layers.linear import RowParallelLinear
from kvasir_engine.layers.weights import deferred_weights


def test_plain_weights_refuse_quantised_inputs() -> None:
    layer = RowParallelLinear(8, 4)
    with pytest.raises(TypeError, match="plain weights"):
        layer(quantized_by_torch(torch.randn(2, 8)))


def test_weights_that_are_deferred_take_no_memory() -> None:
    with deferred_weights():
        layer = RowParallelLinear(8, 4, bias=True)
    assert layer.weight.is_meta
    assert layer.bias is not None
    assert not layer.bias.is_meta
    layer.use(layer.method)
    assert not layer.weight.is_meta
