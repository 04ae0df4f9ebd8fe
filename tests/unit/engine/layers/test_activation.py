"""Activations against transformers' under the same config names, and the gated product."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.activations import ACT2FN

from kvasir_engine.layers.activation import ACTIVATIONS, activation, gated

X = torch.linspace(-6, 6, 101, dtype=torch.float64)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_a_name_means_what_it_means_to_transformers(name: str) -> None:
    torch.testing.assert_close(activation(name)(X), ACT2FN[name](X))


def test_tanh_gelu_is_not_the_exact_one() -> None:
    exact = 0.5 * X * (1 + torch.erf(X / math.sqrt(2)))
    cubic = X + 0.044715 * X**3
    torch.testing.assert_close(activation("gelu")(X), exact)
    torch.testing.assert_close(
        activation("gelu_pytorch_tanh")(X), 0.5 * X * (1 + (math.sqrt(2 / math.pi) * cubic).tanh())
    )


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'hidden_act': 'relu' .*'gelu_pytorch_tanh', 'silu'"):
        activation("relu")


def test_the_first_half_is_the_gate() -> None:
    x = torch.tensor([[1.0, -2.0, 10.0, 100.0]])
    assert gated(x, torch.relu).tolist() == [[10.0, 0.0]]
