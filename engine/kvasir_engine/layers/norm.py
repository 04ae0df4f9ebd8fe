"""Root-mean-square normalisation (arXiv:1910.07467), and layer normalisation (arXiv:1607.06450)."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import nn

from kvasir_engine.device.collectives import all_reduce, tensor_parallel
from kvasir_engine.kernels.norms.norm_parameters import NormParameters
from kvasir_engine.layers.block_output import Output, block_output
from kvasir_engine.layers.fused import fused_ops
from kvasir_engine.layers.weights import WeightedModule, WeightShard, WeightSlot, parameter
from kvasir_engine.quantization.linear_method import Input


class QuantizesTokens(Protocol):
    """A layer that may quantise each token of its input by its own largest number."""

    @property
    def quantizes_tokens(self) -> bool:
        """True if it does, and the kernel before it may instead."""
        ...


class Norm(WeightedModule):
    """A norm over the last dimension."""

    weight: nn.Parameter
    eps: float

    def kernel_parameters(self) -> NormParameters:
        """Return what a kernel needs to know of it."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of x, in its shape and dtype."""
        fused = fused_ops(x.device)
        if fused is not None and x.dim() == 2 and x.is_contiguous():
            return fused.add_norm(x, None, self.kernel_parameters())[0]
        return self._by_torch(x)

    def _by_torch(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def add_rows(
        self, x: Output, residual: torch.Tensor | None, layer: QuantizesTokens
    ) -> tuple[Input, torch.Tensor]:
        """`add`, with the norm quantised by token where `layer`, which it is for, would do it."""
        if not layer.quantizes_tokens:
            return self.add(x, residual)
        given = block_output(x)
        fused = fused_ops(given.x.device)
        if fused is None:
            raise AssertionError("Without kernels layers quantise their inputs themselves.")
        norm = self.kernel_parameters()
        return fused.add_norm_rows(given.x, residual, norm, post=given.post, ranks=given.ranks)

    def add(self, x: Output, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (norm(x + residual), x + residual); without a residual, (norm(x), x)."""
        given = block_output(x)
        fused = fused_ops(given.x.device)
        if fused is not None:
            norm = self.kernel_parameters()
            return fused.add_norm(given.x, residual, norm, post=given.post, ranks=given.ranks)
        total = given.x if residual is None else given.x + residual
        return self._by_torch(total), total


class RMSNorm(Norm):
    """Norm x / rms(x) * weight over the last dimension, computed in fp32."""

    offset = 0.0
    """Number added to the stored weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = parameter(size)
        self.eps = eps

    def kernel_parameters(self) -> NormParameters:
        """Return what a kernel needs to know of it."""
        return NormParameters(self.weight, self.eps, self.offset)

    def _by_torch(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)

    def of_output(self, x: Output) -> Output:
        """Return the norm of what attention or an MLP put out; where there is a kernel that norms
        it when it is added, that is left to it."""
        given = block_output(x)
        if fused_ops(given.x.device) is None:
            return self._by_torch(given.x)
        return replace(given, post=self.kernel_parameters())


class GemmaRMSNorm(RMSNorm):
    """Norm whose weight is stored minus one."""

    offset = 1.0

    def _by_torch(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.offset + self.weight.float()
        return nn.functional.rms_norm(x.float(), (x.shape[-1],), weight, self.eps).to(x.dtype)


class ShardedRMSNorm(RMSNorm):
    """Norm over the channels of all ranks, of which this one has those from `start` on.

    With fewer KV heads than ranks, each rank has a copy of one: each channel then counts equally
    often in the mean, and the mean is the same.
    """

    def __init__(self, size: int, eps: float, *, local: int, start: int) -> None:
        super().__init__(local, eps)
        self.size = size
        self.start = start

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of this rank's heads [tokens, heads, head_dim], in their shape and
        dtype."""
        ranks, channels = tensor_parallel().size, x.flatten(1)
        if ranks == 1:
            return super().forward(channels).view_as(x)
        wide = channels.float()
        squares = all_reduce(wide.pow(2).sum(-1, keepdim=True))
        scale = torch.rsqrt(squares / (ranks * wide.shape[-1]) + self.eps)
        return (wide * scale * self.weight.float()).to(x.dtype).view_as(x)

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return the slot of this rank's channels."""
        shard = WeightShard(self.weight.data, 0, self.start)
        return {f"{path}.weight": WeightSlot((self.size,), (shard,))}


class LayerNorm(Norm):
    """Norm (x - mean) / std * weight + bias over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = parameter(size)
        self.bias = parameter(size)
        self.eps = eps

    def kernel_parameters(self) -> NormParameters:
        """Return what a kernel needs to know of it."""
        return NormParameters(self.weight, self.eps, bias=self.bias)

    def _by_torch(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)


def added(x: Output, residual: torch.Tensor | None) -> torch.Tensor:
    """Return x + residual, or x."""
    given = block_output(x)
    if given.post is None and given.ranks is None and given.x.dim() == 2:
        return given.x if residual is None else given.x + residual
    fused = fused_ops(given.x.device)
    if fused is None:
        raise AssertionError("Without kernels no output waits for a sum or a norm.")
    return fused.add_norm(given.x, residual, None, post=given.post, ranks=given.ranks)[1]
