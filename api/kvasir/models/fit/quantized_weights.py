"""Bytes of quantised linear weights: their numbers, and scales and zero points beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from kvasir.models.model_shape import ModelShape
from kvasir.models.quantization import Activations, Numbers, Packing, Quantization, Scales

_FP8_SCALE_BYTES = 4
_INT4_SCALE_BYTES = 2
_INDEX_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Linear:
    """The weights of one name in the layers of one rank."""

    name: str
    outputs: int
    inputs: int
    copies: int = 1
    """Weights of this name in a layer: experts."""
    sparse: bool | None = None
    """True in layers of experts alone, False in the others alone, None in all."""
    held: tuple[int, int] | None = None
    """Outputs and inputs that a rank holds, where zeros fill up its last group."""


def quantized_linears(shape: ModelShape, tensor_parallel: int = 1) -> tuple[int, int]:
    """Return the number of quantised parameters on each rank, and the bytes that they take.

    Embedding, output projection and routers of experts count as plain. Modules that the checkpoint
    leaves plain are known by the names that Llama and Qwen give them: where a family has others
    (one projection for queries, keys and values), they count as quantised.
    """
    quantization = shape.quantization
    if quantization is None:
        return 0, 0
    parameters = size = 0
    for linear in _linears(shape, tensor_parallel):
        dense = shape.num_layers - shape.num_sparse_layers
        first, last = {None: (0, shape.num_layers), False: (0, dense)}.get(
            linear.sparse, (dense, shape.num_layers)
        )
        copies = linear.copies * _quantized_layers(quantization, linear.name, first, last)
        parameters += copies * linear.outputs * linear.inputs
        held = linear.held or (linear.outputs, linear.inputs)
        size += copies * stored_bytes(quantization, *held)
    return parameters, size


def stored_bytes(quantization: Quantization, outputs: int, inputs: int) -> int:
    """Return the bytes of one weight, with all that a checkpoint has beside it."""
    if quantization.numbers is Numbers.FP8:
        scales = _fp8_scales(quantization, outputs, inputs)
        scales += quantization.activations is Activations.STATIC
        return outputs * inputs + _FP8_SCALE_BYTES * scales
    numbers = -(-outputs * inputs // 2)
    groups = outputs * (-(-inputs // quantization.group) if quantization.group else 1)
    if quantization.numbers is Numbers.MXFP4:
        return numbers + groups
    gptq = quantization.packing is Packing.GPTQ
    # GPTQ's files have zero points and indices where they are all alike, too.
    zeros = 0 if quantization.symmetric and not gptq else -(-groups // 2)
    indices = inputs if quantization.reordered or gptq else 0
    return numbers + _INT4_SCALE_BYTES * groups + zeros + _INDEX_BYTES * indices


def _fp8_scales(quantization: Quantization, outputs: int, inputs: int) -> int:
    if quantization.block is not None:
        return -(-outputs // quantization.block[0]) * -(-inputs // quantization.block[1])
    return outputs if quantization.scales is Scales.CHANNEL else 1


def _linears(shape: ModelShape, tensor_parallel: int) -> Iterator[_Linear]:
    hidden = shape.hidden_size
    heads = shape.num_heads // tensor_parallel * shape.head_dim
    kv_heads = shape.kv_heads_per_rank(tensor_parallel) * shape.head_dim
    yield _Linear("self_attn.q_proj", heads, hidden)
    yield _Linear("self_attn.k_proj", kv_heads, hidden)
    yield _Linear("self_attn.v_proj", kv_heads, hidden)
    yield _Linear("self_attn.o_proj", hidden, heads)
    width = -(-shape.intermediate_size // tensor_parallel)
    if shape.gated_mlp:
        yield _Linear("mlp.gate_proj", width, hidden, sparse=False)
    yield _Linear("mlp.up_proj", width, hidden, sparse=False)
    yield _Linear("mlp.down_proj", hidden, width, sparse=False)
    if shape.num_experts:
        width = -(-shape.moe_intermediate_size // tensor_parallel)
        full = _full_groups(shape, width)
        for name in ("gate", "up", "down"):
            size, held = (width, hidden), (full, hidden)
            if name == "down":
                size, held = size[::-1], held[::-1]
            module, experts = f"mlp.experts.0.{name}_proj", shape.num_experts
            yield _Linear(module, *size, copies=experts, sparse=True, held=held)


def _full_groups(shape: ModelShape, width: int) -> int:
    """Return the inner channels of an expert that a rank holds, which are whole groups in MXFP4."""
    quantization = shape.quantization
    if quantization is None or quantization.numbers is not Numbers.MXFP4:
        return width
    return -(-width // quantization.group) * quantization.group


@lru_cache(maxsize=1024)
def _quantized_layers(quantization: Quantization, name: str, first: int, last: int) -> int:
    """Return the number of layers from `first` to before `last` whose `name` is quantised."""
    return sum(quantization.applies_to(f"model.layers.{i}.{name}") for i in range(first, last))
