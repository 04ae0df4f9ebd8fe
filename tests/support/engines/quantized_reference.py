"""transformers' models with their linear layers quantised, and checkpoints of such layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from kvasir_engine.kernels.quantized_rows import dequantized, quantized_by_torch
from kvasir_engine.layers.weights import WeightSlot

_linear = nn.functional.linear


@contextmanager
def quantized_linears(model: Any, *plain: str) -> Iterator[None]:
    """Have `model` multiply in float8 by channel and token, but for parameters whose names end with
    one of `plain`, or are the head's."""
    kept = ("lm_head.weight", "embed_tokens.weight", *plain)
    pointers = {p.data_ptr() for name, p in model.named_parameters() if name.endswith(kept)}

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        if weight.data_ptr() in pointers:
            return _linear(x, weight, bias)
        inputs = dequantized(quantized_by_torch(x.flatten(0, -2))).view(x.shape)
        return _linear(inputs, dequantized(quantized_by_torch(weight)), bias)

    with patch.object(nn.functional, "linear", linear):
        yield


def tensors_in_blocks(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors with the linear layers' weights in float8, with a scale for
    each block of 128 x 128, as DeepSeek and Qwen store them."""
    made = {}
    for name, tensor in tensors.items():
        made[name] = tensor
        if name.endswith("_proj.weight"):
            outputs, inputs = (-(-size // 128) for size in tensor.shape)
            padded = torch.zeros(outputs * 128, inputs * 128)
            padded[: tensor.shape[0], : tensor.shape[1]] = tensor
            blocks = padded.view(outputs, 128, inputs, 128).transpose(1, 2).flatten(2)
            rows = quantized_by_torch(blocks.flatten(0, 1))
            values = rows.values.view(outputs, inputs, 128, 128).transpose(1, 2)
            whole = values.reshape(outputs * 128, inputs * 128)
            made[name] = whole[: tensor.shape[0], : tensor.shape[1]].contiguous()
            made[f"{name}_scale_inv"] = rows.scales.view(outputs, inputs)
    return made


def quantized_tensors(
    tensors: dict[str, torch.Tensor], *, by_tensor: bool = False
) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors with the linear layers' weights in float8, each with its scales
    as compressed-tensors stores them; `by_tensor`: one scale for each."""
    made = {}
    for name, tensor in tensors.items():
        if not name.endswith("_proj.weight"):
            made[name] = tensor
            continue
        shaped = tensor.flatten()[None] if by_tensor else tensor
        rows = quantized_by_torch(shaped)
        made[name] = rows.values.view(tensor.shape)
        made[f"{name}_scale"] = rows.scales if by_tensor else rows.scales[:, None]
    return made


def fill_slots(slots: dict[str, WeightSlot], checkpoint: dict[str, torch.Tensor]) -> None:
    """Fill slots from a checkpoint, which has what they ask for and no more, as the loader does."""
    assert slots.keys() == checkpoint.keys()
    for name, slot in slots.items():
        assert slot.shape == tuple(checkpoint[name].shape), name
        for shard in slot.shards:
            read = checkpoint[name].narrow(shard.dim, shard.start, shard.stop - shard.start)
            if shard.store is None:
                shard.target.copy_(read)
            else:
                shard.store(read)
