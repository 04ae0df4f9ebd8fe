"""Mixture of experts: each token passes through the few MLPs that a router chooses for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from kvasir_engine.device.collectives import all_reduce, divide, tensor_parallel
from kvasir_engine.layers.activation import activation, gated
from kvasir_engine.layers.fused import FusedOps, fused_ops
from kvasir_engine.layers.weights import WeightShard, WeightSlot, parameter
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


class MoE(nn.Module):
    """Softmax router and top-k experts, every expert sharded over ranks as a gated MLP is."""

    quantizes_tokens = False
    """The router needs the inputs as they are."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.local = divide(config.intermediate_size, "moe_intermediate_size")
        experts, hidden = config.num_experts, config.hidden_size
        self.router = parameter(experts, hidden)
        self.gate_up = parameter(experts, 2 * self.local, hidden)
        self.down = parameter(experts, hidden, self.local)
        self.act = activation(config.act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [tokens, hidden_size] to the same shape."""
        fused = fused_ops(x.device)
        if fused is not None:
            return all_reduce(self._by_kernels(x, fused))
        return all_reduce(self._by_torch(x))

    def _by_kernels(self, x: torch.Tensor, fused: FusedOps) -> torch.Tensor:
        moe, top_k, experts = fused.moe, self.config.experts_per_token, self.config.num_experts
        scores = linear(x, self.router, None)
        weights, chosen = fused.moe_blocks.route(scores, top_k, normalise=self.config.normalise)
        tuning = moe.moe_tuning_for(chosen.numel(), experts)
        blocks = fused.moe_blocks.make_expert_blocks(chosen, experts, tuning.rows)
        gates = self.act is nn.functional.silu
        inner = moe.grouped_gemm(
            x.contiguous(), self.gate_up, blocks, tuning, top_k=top_k, gated=gates
        )
        if not gates:
            inner = gated(inner, self.act)
        shares = moe.grouped_gemm(inner, self.down, blocks, tuning, top_k=top_k, weights=weights)
        total: torch.Tensor = shares.view(len(x), top_k, -1).sum(1)
        return total

    def _by_torch(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for expert in torch.unique(chosen).tolist():
            token, choice = torch.where(chosen == expert)
            inner = gated(linear(x[token], self.gate_up[expert], None), self.act)
            share = linear(inner, self.down[expert], None) * weights[token, choice, None]
            out.index_add_(0, token, share.to(out.dtype))
        return out

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return fp32 weights and expert ids [tokens, experts_per_token]."""
        scores = linear(x, self.router, None).float().softmax(-1)
        weights, chosen = scores.topk(self.config.experts_per_token, dim=-1)
        if self.config.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return slots of the router's matrix and of three matrices an expert."""
        c, local, start = self.config, self.local, tensor_parallel().rank * self.local
        path = f"{path.rpartition('.')[0]}.{c.names.block}"
        slots = {f"{path}.gate.weight": WeightSlot.whole(self.router.data)}
        up_shape = (c.intermediate_size, c.hidden_size)
        for expert in range(c.num_experts):
            gate, up = self.gate_up.data[expert].tensor_split((local,))
            for name, shape, target, dim in (
                (c.names.gate, up_shape, gate, 0),
                (c.names.up, up_shape, up, 0),
                (c.names.down, up_shape[::-1], self.down.data[expert], 1),
            ):
                shard = WeightShard(target, dim, start)
                slots[f"{path}.experts.{expert}.{name}.weight"] = WeightSlot(shape, (shard,))
        return slots
