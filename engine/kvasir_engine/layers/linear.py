"""Linear layers sharded over ranks, after Megatron-LM (arXiv:1909.08053, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from kvasir_engine.device.collectives import divide, one_shot_sum, tensor_parallel
from kvasir_engine.kernels.quantized_rows import QuantizedRows
from kvasir_engine.layers.block_output import BlockOutput, Output, over_ranks
from kvasir_engine.layers.fused import fused_ops
from kvasir_engine.layers.stored_shard import shard_of, whole_shape
from kvasir_engine.layers.weights import WeightSlot, parameter, siblings
from kvasir_engine.quantization.linear_method import Input, LinearMethod, Stored
from kvasir_engine.quantization.plain import PLAIN

if TYPE_CHECKING:
    from kvasir_engine.kernels.gemm.skinny import Gate


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


class ParallelLinear(nn.Module):
    """A linear layer's share of one rank, and the method that stores and multiplies its weights."""

    weight: nn.Parameter
    weight_scale: nn.Parameter
    input_scale: nn.Parameter
    weight_zero: nn.Parameter | None
    input_groups: nn.Parameter | None
    input_order: nn.Parameter | None
    experts = 1

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.local_inputs = inputs
        self.local_outputs = outputs
        self.dtype = torch.get_default_dtype()
        self.bias = parameter(outputs) if bias else None
        self.use(PLAIN)

    def use(self, method: LinearMethod) -> None:
        """Have weights of this method, uninitialised."""
        self.method = method
        method.create(self)

    def prepare(self, x: Input) -> Input:
        """Return x as the weights are multiplied by it, which may be quantised; as it is where that
        was done before."""
        return self.method.prepare(self, x)

    def modules_in_checkpoint(self, path: str) -> list[str]:
        """Return the names of the modules that a checkpoint has of it; `path` is its own here."""
        return [path]

    @property
    def quantizes_tokens(self) -> bool:
        """True if the kernel before it may quantise its inputs."""
        return self.method.quantizes_tokens and fused_ops(self.weight.device) is not None


class ColumnParallelLinear(ParallelLinear):
    """Several matrices of one input as one, each sharded along its outputs.

    The checkpoint holds the parts as modules beside this one, or, when `fused`, one tensor of all
    parts one after another under this module's own name.
    """

    def __init__(
        self, inputs: int, parts: tuple[OutputPart, ...], *, bias: bool = False, fused: bool = False
    ) -> None:
        super().__init__(inputs, sum(part.local for part in parts), bias=bias)
        self.parts = parts
        self.fused = fused

    def forward(self, x: Input) -> torch.Tensor:
        """Map [tokens, inputs] to this rank's [tokens, sum of local outputs]."""
        return self.method.apply(self, self.prepare(x), self.bias)

    def summed_later(self, x: Input) -> torch.Tensor:
        """Return the same, or where it is faster fp32 [parts, tokens, local outputs], whose sum it
        is."""
        x = self.prepare(x)
        parts = self.method.parts(self, x, self.bias)
        return self.method.apply(self, x, self.bias) if parts is None else parts

    def gated_by(self, x: Input, gate: Gate) -> torch.Tensor | None:
        """Return gate(first half of outputs) * second half, where one kernel does it faster, else
        None."""
        return self.method.gated(self, self.prepare(x), self.bias, gate)

    def modules_in_checkpoint(self, path: str) -> list[str]:
        """Return the names of the modules that a checkpoint has of it; `path` is its own here."""
        if self.fused:
            return [path]
        return list(siblings(path, tuple(part.name for part in self.parts)))

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return a slot a part, or one of several shards when fused."""
        stored = [*self.method.stored(self)]
        if self.bias is not None:
            stored.append(Stored("bias", self.bias.data))
        slots: dict[str, WeightSlot] = {}
        for each in stored:
            slots.update(self._slots_of(path, each))
        return slots

    def _slots_of(self, path: str, stored: Stored) -> dict[str, WeightSlot]:
        first, whole = 0, 0
        slots: dict[str, WeightSlot] = {}
        shards = []
        names = self.modules_in_checkpoint(path)
        for at, part in enumerate(self.parts):
            rows = slice(first, first + part.local)
            shard = shard_of(stored, rows, stored.outputs_dim, whole * self.fused + part.start)
            shards.append(shard)
            if not self.fused:
                shape = whole_shape(stored, part.size, self.local_inputs)
                slots[f"{names[at]}.{stored.name}"] = WeightSlot(shape, (shard,))
            first, whole = rows.stop, whole + part.size
        if self.fused:
            shape = whole_shape(stored, whole, self.local_inputs)
            slots[f"{path}.{stored.name}"] = WeightSlot(shape, tuple(shards))
        return slots


class RowParallelLinear(ParallelLinear):
    """A matrix sharded along its inputs; the ranks' products are summed."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__(divide(inputs, "inputs"), outputs, bias=bias)
        self.inputs = inputs

    def forward(self, x: Input) -> Output:
        """Map this rank's [tokens, inputs / ranks] to the whole [tokens, outputs]."""
        x, here = self.prepare(x), tensor_parallel()
        bias = self.bias if here.rank == 0 else None
        tokens = len(x.values if isinstance(x, QuantizedRows) else x)
        ranks = one_shot_sum(tokens * self.local_outputs * self.dtype.itemsize, self.dtype)
        if ranks is not None or here.size == 1:
            parts = self.method.parts(self, x, bias)
            if parts is not None:
                return BlockOutput(parts, ranks=ranks)
        return over_ranks(self.method.apply(self, x, bias))

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return slots of the weight's columns of this rank and of the whole bias."""
        slots = {}
        start = tensor_parallel().rank * self.local_inputs
        for stored in self.method.stored(self):
            shard = shard_of(stored, slice(0, self.local_outputs), stored.inputs_dim, start)
            shape = whole_shape(stored, self.local_outputs, self.inputs)
            slots[f"{path}.{stored.name}"] = WeightSlot(shape, (shard,))
        if self.bias is not None:
            slots[f"{path}.bias"] = WeightSlot.whole(self.bias.data)
        return slots
