"""Mixture of experts: each token passes through the few MLPs that a router chooses for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kvasir_engine.device.collectives import all_reduce, divide, tensor_parallel
from kvasir_engine.device.float8 import FP8
from kvasir_engine.layers.activation import activation, gated
from kvasir_engine.layers.block_output import Output, over_ranks
from kvasir_engine.layers.fused import FusedOps, fused_ops
from kvasir_engine.layers.linear import ParallelLinear
from kvasir_engine.layers.stored_shard import shard_of, whole_shape
from kvasir_engine.layers.weights import WeightSlot, parameter
from kvasir_engine.quantization.linear_method import LinearMethod, Stored
from kvasir_engine.quantization.plain import linear


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of the block and the three matrices of an expert in a checkpoint."""

    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Sizes of a block over all ranks. `normalise`: the chosen experts' weights sum to one."""

    hidden_size: int
    intermediate_size: int
    num_experts: int
    experts_per_token: int
    act: str
    normalise: bool
    names: ExpertNames


class ExpertLinear(ParallelLinear):
    """Matrices of all experts, one after another: rows for outputs."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__(inputs, experts * outputs, bias=False)
        self.experts = experts
        self.shape = experts, outputs, inputs

    @property
    def matrices(self) -> torch.Tensor:
        """Return the weight by expert: [experts, outputs, inputs]."""
        return self.weight.view(self.shape)

    @property
    def input_bytes(self) -> int:
        """Return the bytes of a number that the grouped kernel multiplies."""
        float8 = self.method.scales(self) is not None
        return FP8.itemsize if float8 else self.dtype.itemsize

    def rows_of(self, expert: int) -> slice:
        """Return the rows of one expert's matrix."""
        return slice(expert * self.shape[1], (expert + 1) * self.shape[1])


class MoE(nn.Module):
    """Softmax router and top-k experts: every expert sharded over ranks as a gated MLP is, or with
    expert parallelism each rank's share of whole experts."""

    quantizes_tokens = False
    """The router needs the inputs as they are."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        experts, hidden, ranks = config.num_experts, config.hidden_size, tensor_parallel()
        self.router = parameter(experts, hidden)
        self.whole = ranks.expert_parallel
        """Experts of this rank are whole."""
        if self.whole:
            experts, self.local = divide(experts, "num_experts"), config.intermediate_size
            self.own_experts = range(ranks.rank * experts, (ranks.rank + 1) * experts)
        else:
            self.local = divide(config.intermediate_size, "moe_intermediate_size")
            self.own_experts = range(experts)
        self.gate_up = ExpertLinear(experts, hidden, 2 * self.local)
        self.down = ExpertLinear(experts, self.local, hidden)
        self.act = activation(config.act)

    def use(self, method: LinearMethod) -> None:
        """Have experts' weights of this method, uninitialised."""
        self.gate_up.use(method)
        self.down.use(method)

    def modules_in_checkpoint(self, path: str) -> list[str]:
        """Return the names of the modules that a checkpoint has of it; `path` is its own here."""
        c = self.config
        kinds = (c.names.gate, c.names.up, c.names.down)
        experts = f"{self._block(path)}.experts"
        return [f"{experts}.{expert}.{kind}" for expert in range(c.num_experts) for kind in kinds]

    def forward(self, x: torch.Tensor) -> Output:
        """Map [tokens, hidden_size] to the same shape."""
        fused = fused_ops(x.device)
        if fused is not None:
            return over_ranks(self._by_kernels(x, fused))
        return all_reduce(self._by_torch(x))

    def _by_kernels(self, x: torch.Tensor, fused: FusedOps) -> torch.Tensor:
        moe, top_k, experts = fused.moe, self.config.experts_per_token, len(self.own_experts)
        scores = self.scores(x)
        weights, chosen = fused.moe_blocks.route(scores, top_k, normalise=self.config.normalise)
        itemsize = self.gate_up.input_bytes
        tuning = moe.moe_tuning_for(chosen.numel(), self.config.num_experts, itemsize)
        if self.whole:
            chosen = self._own(chosen)
        blocks = fused.moe_blocks.make_expert_blocks(chosen, experts, tuning.rows)
        gates = self.act is nn.functional.silu

        def grouped(layer: ExpertLinear, inputs: torch.Tensor, **options: Any) -> torch.Tensor:
            prepared = layer.prepare(inputs.contiguous())
            in_4_bits = layer.method.int4_weight(layer)
            if in_4_bits is not None:
                given = prepared, in_4_bits, blocks, tuning
                return fused.int4.grouped(*given, experts=experts, top_k=top_k, **options)
            out: torch.Tensor = moe.grouped_gemm(
                prepared,
                layer.matrices,
                blocks,
                tuning,
                top_k=top_k,
                scales=layer.method.scales(layer),
                dtype=layer.dtype,
                **options,
            )
            return out

        inner = grouped(self.gate_up, x, gated=gates)
        if not gates:
            inner = gated(inner, self.act)
        shares = grouped(self.down, inner, weights=weights).view(len(x), top_k, -1)
        if self.whole:
            # Nobody wrote what other ranks' experts make.
            shares = torch.where((chosen < experts)[..., None], shares, 0.0)
        return shares.sum(1)

    def _own(self, chosen: torch.Tensor) -> torch.Tensor:
        """Return this rank's numbers of its experts, and for others one more than it has."""
        first, count = self.own_experts.start, len(self.own_experts)
        own = (chosen >= first) & (chosen < first + count)
        return torch.where(own, chosen - first, count)

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """Return the router's scores [tokens, experts] of its inputs."""
        return linear(x, self.router, None)

    def _by_torch(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for expert in torch.unique(chosen).tolist():
            if expert not in self.own_experts:
                continue
            token, choice = torch.where(chosen == expert)
            own = expert - self.own_experts.start
            inner = gated(_product(self.gate_up, x[token], own), self.act)
            share = _product(self.down, inner, own) * weights[token, choice, None]
            out.index_add_(0, token, share.to(out.dtype))
        return out

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return fp32 weights and expert ids [tokens, experts_per_token]."""
        scores = self.scores(x).float().softmax(-1)
        weights, chosen = scores.topk(self.config.experts_per_token, dim=-1)
        if self.config.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return slots of the router's matrix and of three matrices an expert, of which those of
        other ranks' experts have no place here."""
        c, block = self.config, self._block(path)
        slots = {f"{block}.gate.weight": WeightSlot.whole(self.router.data)}
        kinds = ((c.names.gate, self.gate_up, 0), (c.names.up, self.gate_up, self.local))
        for kind, layer, first in (*kinds, (c.names.down, self.down, 0)):
            for stored in layer.method.stored(layer):
                for expert in range(c.num_experts):
                    name = f"{block}.experts.{expert}.{kind}.{stored.name}"
                    slots[name] = self._expert_slot(stored, layer, expert, first)
        return slots

    def _expert_slot(
        self, stored: Stored, layer: ExpertLinear, expert: int, first: int
    ) -> WeightSlot:
        """A tensor of one expert's matrix, which begins with output `first` of the layer's."""
        c, by_rows = self.config, layer is self.gate_up
        up_shape = c.intermediate_size, c.hidden_size
        shape = whole_shape(stored, *(up_shape if by_rows else up_shape[::-1]))
        if expert not in self.own_experts:
            return WeightSlot(shape, ())
        begin = layer.rows_of(expert - self.own_experts.start).start + first
        rows = slice(begin, begin + (self.local if by_rows else c.hidden_size))
        start = 0 if self.whole else tensor_parallel().rank * self.local
        dim = stored.outputs_dim if by_rows else stored.inputs_dim
        return WeightSlot(shape, (shard_of(stored, rows, dim, start),))

    def _block(self, path: str) -> str:
        return f"{path.rpartition('.')[0]}.{self.config.names.block}"


def _product(layer: ExpertLinear, x: torch.Tensor, expert: int) -> torch.Tensor:
    return layer.method.apply(layer, layer.prepare(x), None, rows=layer.rows_of(expert))
