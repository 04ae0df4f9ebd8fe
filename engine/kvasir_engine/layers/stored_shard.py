"""Shards of what a checkpoint stores of a linear layer, whichever way it lies there."""

from __future__ import annotations

from functools import partial

from kvasir_engine.layers.weights import WeightShard
from kvasir_engine.quantization.linear_method import Stored


def whole_shape(stored: Stored, outputs: int, inputs: int) -> tuple[int, ...]:
    """Return the shape that a checkpoint has of `stored` for a matrix of these sizes."""
    if stored.single:
        return (1,)
    shape = [*stored.target.shape]
    if stored.outputs_dim is not None:
        shape[stored.outputs_dim] = _divided(outputs, stored.units[0])
    if stored.inputs_dim is not None:
        shape[stored.inputs_dim] = _divided(inputs, stored.units[1])
    return tuple(shape)


def shard_of(stored: Stored, rows: slice, dim: int | None, start: int) -> WeightShard:
    """Return the shard for these outputs of a stored tensor, which holds `start` and on along dim,
    its outputs' or its inputs', or all of it without one.

    Raises ValueError when outputs or inputs that share a number would be divided.
    """
    store = None if stored.store is None else partial(stored.store, rows)
    if stored.single:
        return WeightShard(stored.target[rows.start : rows.start + 1], store=store)
    of_outputs, of_inputs = stored.units
    of_dim = of_inputs if dim is not None and dim == stored.inputs_dim else of_outputs
    if dim is None:
        dim, start = 0, 0
    target = stored.target
    if stored.outputs_dim is not None:
        _check_divisible(rows.start, of_outputs)
        first = rows.start // of_outputs
        length = _divided(rows.stop, of_outputs) - first
        target = target.narrow(stored.outputs_dim, first, length)
    _check_divisible(start, of_dim)
    return WeightShard(target, dim, start // of_dim, store)


def _check_divisible(edge: int, unit: int) -> None:
    if edge % unit:
        raise ValueError(
            f"blocks of {unit} weights share a scale or are packed together, and a rank or a merged"
            f" matrix begins within one, at {edge}; choose another tensor-parallel-size"
        )


def _divided(size: int, unit: int) -> int:
    return -(-size // unit)
