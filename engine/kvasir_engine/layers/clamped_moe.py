"""gpt-oss' mixture of experts: biases everywhere, a clamped SwiGLU, and each kind of matrix of all
experts in one tensor of the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvasir_engine.device.collectives import all_reduce, one_shot_sum, tensor_parallel
from kvasir_engine.layers.block_output import BlockOutput, Output, over_ranks
from kvasir_engine.layers.fused import FusedOps, fused_ops
from kvasir_engine.layers.moe import ExpertLinear, MoE, MoEConfig
from kvasir_engine.layers.weights import WeightShard, WeightSlot, deferred_weights, parameter
from kvasir_engine.quantization.linear_method import LinearMethod
from kvasir_engine.quantization.mxfp4 import GROUP, Mxfp4Experts, store_halves
from kvasir_engine.quantization.plain import PLAIN, linear

MAX_SUMMED_LATER = 256
"""Tokens up to which the next norm sums what a token's experts make: a kernel less a layer."""


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """(up + 1) * gate * sigmoid(alpha * gate), of gates of at most `limit` and ups within it."""

    alpha: float
    limit: float

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Map [..., 2 n], whose first half is the gate, to [..., n]."""
        gate, up = gate_up.chunk(2, dim=-1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))


class ClampedMoE(MoE):
    """Softmax over the chosen experts' scores; experts' gates and ups alternate in the checkpoint
    and are two halves here."""

    def __init__(self, config: MoEConfig, gate: ClampedGate) -> None:
        if tensor_parallel().expert_parallel:
            raise ValueError(
                "the experts of this architecture are sharded over ranks, not divided; leave out"
                " --enable-expert-parallel"
            )
        super().__init__(config)
        experts = config.num_experts
        self.gate = gate
        self.router_bias = parameter(experts)
        self.gate_up_bias = parameter(experts, 2 * self.local)
        self.down_bias = parameter(experts, config.hidden_size)

    def use(self, method: LinearMethod) -> None:
        """MoE.use; raises ValueError for a method that checkpoints of these experts have not."""
        if method is not PLAIN and not isinstance(method, Mxfp4Experts):
            raise ValueError(
                "the experts of this architecture are plain or MXFP4; take --quantization auto, or"
                " a checkpoint in one of these"
            )
        if isinstance(method, Mxfp4Experts) and self.local % GROUP:
            self._fill_up_groups()
        super().use(method)

    def _fill_up_groups(self) -> None:
        """Have whole groups of channels on every rank, of which the last one may have fewer that
        are not zero; raises ValueError when a rank would have none."""
        inner, ranks = self.config.intermediate_size, tensor_parallel().size
        self.local = -(-inner // (ranks * GROUP)) * GROUP
        if inner % GROUP or (ranks - 1) * self.local >= inner:
            raise ValueError(
                f"moe_intermediate_size {inner} has no whole group of {GROUP} channels, which share"
                f" scales in MXFP4, for each of {ranks} ranks; choose a lower tensor-parallel-size"
            )
        experts, hidden = self.config.num_experts, self.config.hidden_size
        with deferred_weights():
            self.gate_up = ExpertLinear(experts, hidden, 2 * self.local)
            self.down = ExpertLinear(experts, self.local, hidden)
        self.gate_up_bias = parameter(experts, 2 * self.local)
        self.gate_up_bias.data.zero_()

    @property
    def channels(self) -> int:
        """Inner channels of the model that this rank has."""
        start = tensor_parallel().rank * self.local
        return min(self.local, self.config.intermediate_size - start)

    def modules_in_checkpoint(self, path: str) -> list[str]:
        """Return the names of the modules that a checkpoint has of it; `path` is its own here."""
        return [f"{path}.experts.{name}" for name in ("gate_up_proj", "down_proj")]

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """MoE.scores."""
        return linear(x, self.router, self.router_bias)

    def forward(self, x: torch.Tensor) -> Output:
        """Map [tokens, hidden_size] to the same shape."""
        fused = fused_ops(x.device)
        if fused is None:
            return all_reduce(self._by_torch(x))
        shares = self._by_kernels(x, fused)
        ranks = one_shot_sum(x.numel() * x.itemsize, x.dtype)
        if len(x) <= MAX_SUMMED_LATER and (ranks is not None or tensor_parallel().size == 1):
            return BlockOutput(shares, ranks=ranks)
        return over_ranks(shares.sum(0).to(x.dtype))

    def _by_kernels(self, x: torch.Tensor, fused: FusedOps) -> torch.Tensor:
        """Shares of each token's choices, fp32 [experts_per_token, tokens, hidden_size]."""
        top_k, experts = self.config.experts_per_token, self.config.num_experts
        weights, chosen = fused.moe_blocks.route(self.scores(x), top_k, normalise=True)
        kernels = fused.clamped_experts
        tuning = kernels.clamped_tuning_for(chosen.numel(), experts)
        blocks = fused.moe_blocks.make_expert_blocks(chosen, experts, tuning.rows)
        given = kernels.Assignments(blocks, tuning, top_k)
        gate_up = kernels.Matrices(*_matrices(self.gate_up), self.gate_up_bias)
        down = kernels.Matrices(*_matrices(self.down), self._own_down_bias())
        inner = kernels.gated_experts(
            x.contiguous(), gate_up, given, alpha=self.gate.alpha, limit=self.gate.limit
        )
        shares: torch.Tensor = kernels.down_experts(inner, down, given, weights)
        return shares

    def _by_torch(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        down_bias = self._own_down_bias()
        for expert in torch.unique(chosen).tolist():
            token, choice = torch.where(chosen == expert)
            inner = self.gate(_product(self.gate_up, x[token], expert, self.gate_up_bias))
            share = _product(self.down, inner, expert, down_bias) * weights[token, choice, None]
            out.index_add_(0, token, share.to(out.dtype))
        return out

    def _own_down_bias(self) -> torch.Tensor | None:
        """Bias of the ranks' sum, which the first one adds."""
        return self.down_bias if tensor_parallel().rank == 0 else None

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return slots of the router's parts, and of all experts' matrices and biases."""
        experts, bias = f"{path}.experts", self.gate_up_bias.data.t()
        read = bias[: 2 * self.channels].t()
        return {
            f"{path}.router.weight": WeightSlot.whole(self.router.data),
            f"{path}.router.bias": WeightSlot.whole(self.router_bias.data),
            f"{experts}.gate_up_proj_bias": self._slot(
                read, 1, 2, lambda biases: store_halves(bias, biases.t())
            ),
            f"{experts}.down_proj_bias": WeightSlot.whole(self.down_bias.data),
            **self._gate_up_slots(f"{experts}.gate_up_proj"),
            **self._down_slots(f"{experts}.down_proj"),
        }

    def _gate_up_slots(self, name: str) -> dict[str, WeightSlot]:
        method = self.gate_up.method
        if isinstance(method, Mxfp4Experts):
            packed = method.packed(self.gate_up, self.channels, alternating=True)
            return {
                f"{name}{one.suffix}": self._slot(one.target, 1, 2, one.store) for one in packed
            }
        # Inputs come before outputs in a plain checkpoint.
        target = self.gate_up.matrices.data.transpose(1, 2)

        def store(read: torch.Tensor) -> None:
            store_halves(target.movedim(2, 0), read.movedim(2, 0))

        return {name: self._slot(target, 2, 2, store)}

    def _down_slots(self, name: str) -> dict[str, WeightSlot]:
        method, each = self.down.method, 1 / GROUP
        if isinstance(method, Mxfp4Experts):
            packed = method.packed(self.down, self.channels, alternating=False)
            return {
                f"{name}{one.suffix}": self._slot(one.target, 2, each, one.store) for one in packed
            }
        return {name: self._slot(self.down.matrices.data.transpose(1, 2), 1, 1, None)}

    def _slot(
        self,
        target: torch.Tensor,
        dim: int,
        each: float,
        store: Callable[[torch.Tensor], None] | None,
    ) -> WeightSlot:
        """A tensor with `each` numbers an inner channel along `dim`, of which ranks have theirs."""
        shape, ranks = list(target.shape), tensor_parallel()
        shape[dim] = int(each * self.config.intermediate_size)
        start = int(each * ranks.rank * self.local)
        # All of it is one run of the file's bytes.
        shard = WeightShard(target, dim if ranks.size > 1 else 0, start, store)
        return WeightSlot(tuple(shape), (shard,))


def _product(
    layer: ExpertLinear, x: torch.Tensor, expert: int, biases: torch.Tensor | None
) -> torch.Tensor:
    bias = None if biases is None else biases[expert]
    return layer.method.apply(layer, x, bias, rows=layer.rows_of(expert))


def _matrices(layer: ExpertLinear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Matrices as the kernels take them, and the scales of quantised ones."""
    if isinstance(layer.method, Mxfp4Experts):
        return layer.weight.data, layer.weight_scale.data
    return layer.matrices, None
