"""Weights in 4 bits with a scale, and maybe a zero point, for each group of an output's inputs;
inputs stay in the model's type.

A checkpoint's layout becomes that of `Int4Weight` as it is read. Where GPTQ has quantised inputs in
another order than they stand ("desc_act"), columns are brought into the order of their groups when
all is read, and inputs as they come.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from kvasir.models.quantization import Quantization
from kvasir_engine.kernels.int4.int4_weights import (
    NIBBLES,
    SYMMETRIC_ZERO,
    UNIT,
    WORDS,
    Int4Weight,
    dequantized_by_torch,
    groups_of,
    packed,
    units_of,
    unpacked,
)
from kvasir_engine.kernels.quantized_rows import QuantizedRows
from kvasir_engine.layers.fused import fused_ops
from kvasir_engine.quantization.int4_formats import FORMATS
from kvasir_engine.quantization.linear_method import (
    ALL,
    Input,
    LinearLayer,
    LinearMethod,
    Store,
    Stored,
    no_place,
)
from kvasir_engine.quantization.plain import DUMMY_RANGE, linear

if TYPE_CHECKING:
    from kvasir_engine.kernels.gemm.skinny import Gate

_ROWS_AT_ONCE = 4096
"""Outputs that are brought into another order at once."""
_reading = threading.Lock()


class Int4Linear(LinearMethod):
    """`weight` int32, `weight_scale` and `weight_zero` as `Int4Weight` has them; `input_groups`
    int32 and `input_order` int64 [inputs] where inputs are reordered."""

    def __init__(self, quantization: Quantization) -> None:
        """`quantization`: of 4 bits, by groups or channels."""
        self._format = FORMATS[quantization.packing]
        self._group = quantization.group
        self._symmetric = quantization.symmetric
        self._reordered = quantization.reordered

    def create(self, layer: LinearLayer) -> None:
        """LinearMethod.create. Raises ValueError for experts whose inputs are reordered."""
        if self._reordered and layer.experts > 1:
            raise ValueError(
                "config field 'quantization_config': experts whose inputs were quantised in another"
                " order (desc_act, actorder) are not supported; use a checkpoint without it"
            )
        outputs, inputs = layer.local_outputs, layer.local_inputs
        words = torch.empty(outputs, units_of(inputs) * WORDS, dtype=torch.int32)
        layer.weight = nn.Parameter(words, requires_grad=False)
        # Those of groups behind the last input are zeros.
        shape = groups_of(inputs, self._group_of(layer)), outputs
        layer.weight_scale = nn.Parameter(torch.zeros(shape), requires_grad=False)
        layer.weight_zero = layer.input_groups = layer.input_order = None
        if not self._symmetric:
            zeros = torch.zeros(shape, dtype=torch.uint8)
            layer.weight_zero = nn.Parameter(zeros, requires_grad=False)
        if self._reordered:
            unread = torch.full((inputs,), -1, dtype=torch.int32)
            layer.input_groups = nn.Parameter(unread, requires_grad=False)

    def stored(self, layer: LinearLayer) -> Sequence[Stored]:
        """LinearMethod.stored."""
        of, words, scales = self._format, layer.weight.data, layer.weight_scale.data

        def store_numbers(rows: slice, read: torch.Tensor) -> None:
            words[rows] = packed(of.unpacked_numbers(read))

        def store_scales(rows: slice, read: torch.Tensor) -> None:
            by_group = of.unpacked_scales(read)
            scales[: len(by_group), rows] = by_group.to(scales.dtype)

        eight = (NIBBLES, 1) if of.packs_outputs else (1, NIBBLES)
        stored = [
            self._matrix(layer, of.numbers, eight, store_numbers),
            self._matrix(layer, of.scales, (1, self._group), store_scales),
        ]
        if layer.weight_zero is not None:
            zeros = layer.weight_zero.data

            def store_zeros(rows: slice, read: torch.Tensor) -> None:
                by_group = of.unpacked_zeros(read)
                zeros[: len(by_group), rows] = by_group

            stored.append(self._matrix(layer, of.zeros, (NIBBLES, self._group), store_zeros))
        if layer.input_groups is not None:
            stored.append(_input_groups(of.groups, layer.input_groups.data))
        return stored

    def finish(self, layer: LinearLayer) -> None:
        """LinearMethod.finish."""
        if layer.input_groups is None:
            return
        groups, layer.input_groups = layer.input_groups.data, None
        order = torch.argsort(groups, stable=True)
        stands = torch.arange(len(order), device=order.device)
        if not torch.equal(groups[order].long(), stands // self._group_of(layer)):
            raise ValueError(
                f"{self._format.groups} does not make groups of {self._group} inputs; the config"
                " and the weights do not belong together"
            )
        if torch.equal(order, stands):
            return
        layer.input_order = nn.Parameter(order, requires_grad=False)
        for first in range(0, layer.local_outputs, _ROWS_AT_ONCE):
            words = layer.weight.data[first : first + _ROWS_AT_ONCE]
            words.copy_(packed(unpacked(words, len(order))[:, order]))

    def prepare(self, layer: LinearLayer, x: Input) -> Input:
        """LinearMethod.prepare."""
        return x

    def apply(
        self, layer: LinearLayer, x: Input, bias: torch.Tensor | None, rows: slice = ALL
    ) -> torch.Tensor:
        """LinearMethod.apply."""
        ordered, weight = self._operands(layer, x)
        if rows is not ALL:
            weight = weight.rows(rows)
        fused, inputs = fused_ops(ordered.device), layer.local_inputs
        if fused is None:
            return linear(ordered, dequantized_by_torch(weight, inputs), bias)
        if len(ordered) <= fused.int4.max_few_tokens:
            return fused.int4.linear(ordered, weight, bias)
        return linear(ordered, fused.int4.dequantized(weight, inputs), bias)

    def parts(self, layer: LinearLayer, x: Input, bias: torch.Tensor | None) -> torch.Tensor | None:
        """LinearMethod.parts."""
        fused = fused_ops(x.device)
        if fused is None:
            return None
        return fused.int4.parts(*self._operands(layer, x), bias)

    def gated(
        self, layer: LinearLayer, x: Input, bias: torch.Tensor | None, gate: Gate
    ) -> torch.Tensor | None:
        """LinearMethod.gated."""
        fused = fused_ops(x.device)
        if fused is None:
            return None
        return fused.int4.gated(*self._operands(layer, x), bias, gate)

    def int4_weight(self, layer: LinearLayer) -> Int4Weight:
        """LinearMethod.int4_weight."""
        zeros = None if layer.weight_zero is None else layer.weight_zero.data
        return Int4Weight(layer.weight.data, layer.weight_scale.data, zeros, self._group_of(layer))

    def fill_randomly(self, layer: LinearLayer, generator: torch.Generator) -> None:
        """LinearMethod.fill_randomly."""
        words = layer.weight.data
        words.random_(-(1 << 31), (1 << 31) - 1, generator=generator)
        layer.weight_scale.data.fill_(DUMMY_RANGE / SYMMETRIC_ZERO)
        if layer.weight_zero is not None:
            layer.weight_zero.data.fill_(SYMMETRIC_ZERO)
        if layer.input_groups is not None:
            order = torch.arange(layer.local_inputs, device=words.device)
            layer.input_order = nn.Parameter(order, requires_grad=False)
            layer.input_groups = None

    def _group_of(self, layer: LinearLayer) -> int:
        return self._group or units_of(layer.local_inputs) * UNIT

    def _operands(self, layer: LinearLayer, x: Input) -> tuple[torch.Tensor, Int4Weight]:
        if isinstance(x, QuantizedRows):
            raise TypeError("A layer with weights of 4 bits was given quantised inputs.")
        if layer.input_order is not None:
            x = x.index_select(1, layer.input_order)
        return x, self.int4_weight(layer)

    def _matrix(
        self, layer: LinearLayer, name: str, units: tuple[int, int], store: Store
    ) -> Stored:
        """Return what is stored for each of `units` of outputs and inputs; 0 stands for all."""
        of_outputs, of_inputs = units[0], units[1] or layer.local_inputs
        shape = [-(-layer.local_outputs // of_outputs), -(-layer.local_inputs // of_inputs)]
        outputs_dim = self._format.outputs_dim
        if outputs_dim == 1:
            shape.reverse()
        return Stored(
            name,
            no_place(layer.weight.data, *shape),
            inputs_dim=1 - outputs_dim if units[1] else None,
            outputs_dim=outputs_dim,
            store=store,
            units=(of_outputs, of_inputs),
        )


def _input_groups(name: str, groups: torch.Tensor) -> Stored:
    """Matrices that are merged have a copy each, which must be the same."""

    def store_groups(_: slice, read: torch.Tensor) -> None:
        with _reading:
            if groups[0] >= 0 and not torch.equal(groups, read.to(groups)):
                raise ValueError(
                    f"{name} differs between matrices that are merged, which is not supported; use"
                    " a checkpoint without desc_act"
                )
            groups.copy_(read)

    target = no_place(groups, len(groups))
    return Stored(name, target, inputs_dim=0, outputs_dim=None, store=store_groups)
