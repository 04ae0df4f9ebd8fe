"""Linear layers sharded over ranks, after Megatron-LM (arXiv:1909.08053, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from kvasir_engine.device.collectives import all_reduce, divide, tensor_parallel
from kvasir_engine.layers.block_output import BlockOutput, Output
from kvasir_engine.layers.fused import fused_ops
from kvasir_engine.layers.weights import WeightShard, WeightSlot, parameter, siblings


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x [tokens, in] times weight [out, in] transposed, plus bias [out]."""
    fused = fused_ops(x.device)
    out = None if fused is None else fused.skinny_gemm(x, weight, bias)
    if out is None and fused is not None and bias is None:
        out = fused.tuned_gemm(x, weight)
    return nn.functional.linear(x, weight, bias) if out is None else out


@dataclass(frozen=True, slots=True)
class OutputPart:
    """One matrix of a merged layer: this rank computes outputs start .. start + local of `size`."""

    name: str
    size: int
    local: int
    start: int


def even_part(name: str, size: int) -> OutputPart:
    """Return a part of which every rank has an equal share."""
    local = divide(size, f"{name} outputs")
    return OutputPart(name, size, local, tensor_parallel().rank * local)


def local_heads(num_heads: int, num_kv_heads: int) -> tuple[int, int]:
    """Return heads and KV heads of this rank; with more ranks than KV heads each has a copy of
    one."""
    size = tensor_parallel().size
    if num_kv_heads < size:
        if size % num_kv_heads:
            raise ValueError(
                f"num_key_value_heads {num_kv_heads} cannot be replicated over {size} ranks;"
                f" choose a tensor-parallel-size that is a multiple of it"
            )
        return divide(num_heads, "num_attention_heads"), 1
    return divide(num_heads, "num_attention_heads"), divide(num_kv_heads, "num_key_value_heads")


def qkv_parts(num_heads: int, num_kv_heads: int, head_dim: int) -> tuple[OutputPart, ...]:
    """Return the parts of queries, keys and values for this rank's heads."""
    tp = tensor_parallel()
    heads, kv_heads = local_heads(num_heads, num_kv_heads)
    first_kv = tp.rank * num_kv_heads // tp.size
    kv = (num_kv_heads * head_dim, kv_heads * head_dim, first_kv * head_dim)
    return (
        OutputPart("q_proj", num_heads * head_dim, heads * head_dim, tp.rank * heads * head_dim),
        OutputPart("k_proj", *kv),
        OutputPart("v_proj", *kv),
    )


class ColumnParallelLinear(nn.Module):
    """Several matrices of one input as one, each sharded along its outputs.

    The checkpoint holds the parts as modules beside this one, or, when `fused`, one tensor of all
    parts one after another under this module's own name.
    """

    def __init__(
        self, inputs: int, parts: tuple[OutputPart, ...], *, bias: bool = False, fused: bool = False
    ) -> None:
        super().__init__()
        self.parts = parts
        self.fused = fused
        outputs = sum(part.local for part in parts)
        self.weight = parameter(outputs, inputs)
        self.bias = parameter(outputs) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [tokens, inputs] to this rank's [tokens, sum of local outputs]."""
        return linear(x, self.weight, self.bias)

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return a slot a part, or one of several shards when fused."""
        slots: dict[str, WeightSlot] = {}
        for kind, tensor in (("weight", self.weight), ("bias", self.bias)):
            if tensor is not None:
                slots.update(self._slots_of(path, kind, tensor.data))
        return slots

    def _slots_of(self, path: str, kind: str, tensor: torch.Tensor) -> dict[str, WeightSlot]:
        targets = torch.split(tensor, [part.local for part in self.parts])
        tail = tuple(tensor.shape[1:])
        if not self.fused:
            names = siblings(path, tuple(part.name for part in self.parts))
            return {
                f"{name}.{kind}": WeightSlot(
                    (part.size, *tail), (WeightShard(target, 0, part.start),)
                )
                for name, part, target in zip(names, self.parts, targets, strict=True)
            }
        shards, offset = [], 0
        for part, target in zip(self.parts, targets, strict=True):
            shards.append(WeightShard(target, 0, offset + part.start))
            offset += part.size
        return {f"{path}.{kind}": WeightSlot((offset, *tail), tuple(shards))}


class RowParallelLinear(nn.Module):
    """A matrix sharded along its inputs; the ranks' products are summed."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.inputs = inputs
        self.weight = parameter(outputs, divide(inputs, "inputs"))
        self.bias = parameter(outputs) if bias else None

    def forward(self, x: torch.Tensor) -> Output:
        """Map this rank's [tokens, inputs / ranks] to the whole [tokens, outputs]."""
        ranks, fused = tensor_parallel(), fused_ops(x.device)
        if fused is not None and ranks.size == 1:
            parts = fused.skinny_parts(x, self.weight, self.bias)
            if parts is not None:
                return BlockOutput(parts)
        bias = self.bias if ranks.rank == 0 else None
        return all_reduce(linear(x, self.weight, bias))

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return slots of the weight's columns of this rank and of the whole bias."""
        outputs, local = self.weight.shape
        start = tensor_parallel().rank * local
        weight = WeightSlot((outputs, self.inputs), (WeightShard(self.weight.data, 1, start),))
        if self.bias is None:
            return {f"{path}.weight": weight}
        return {f"{path}.weight": weight, f"{path}.bias": WeightSlot.whole(self.bias.data)}
