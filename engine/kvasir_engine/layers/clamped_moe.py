"""gpt-oss' mixture of experts: biases everywhere, a clamped SwiGLU, and each kind of matrix of all
experts in one tensor of the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvasir_engine.device.collectives import tensor_parallel
from kvasir_engine.layers.fused import FusedOps
from kvasir_engine.layers.moe import ExpertLinear, MoE, MoEConfig
from kvasir_engine.layers.weights import WeightShard, WeightSlot, parameter
from kvasir_engine.quantization.linear_method import LinearMethod
from kvasir_engine.quantization.mxfp4 import Mxfp4Experts
from kvasir_engine.quantization.plain import PLAIN, linear


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
        super().use(method)

    def modules_in_checkpoint(self, path: str) -> list[str]:
        """Return the names of the modules that a checkpoint has of it; `path` is its own here."""
        return [f"{path}.experts.{name}" for name in ("gate_up_proj", "down_proj")]

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """MoE.scores."""
        return linear(x, self.router, self.router_bias)

    def _by_kernels(self, x: torch.Tensor, fused: FusedOps) -> torch.Tensor:
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
        shares = kernels.down_experts(inner, down, given, weights)
        out: torch.Tensor = shares.view(len(x), top_k, -1).sum(1)
        return out

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
        """The bias of sums over ranks, which the first one adds."""
        return self.down_bias if tensor_parallel().rank == 0 else None

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return slots of the router's parts, and of all experts' matrices and biases."""
        experts, bias = f"{path}.experts", self.gate_up_bias.data
        return {
            f"{path}.router.weight": WeightSlot.whole(self.router.data),
            f"{path}.router.bias": WeightSlot.whole(self.router_bias.data),
            f"{experts}.gate_up_proj_bias": _slot(bias, 1, _halved(bias, 1)),
            f"{experts}.down_proj_bias": WeightSlot.whole(self.down_bias.data),
            **_matrix_slots(f"{experts}.gate_up_proj", self.gate_up, alternating=True),
            **_matrix_slots(f"{experts}.down_proj", self.down, alternating=False),
        }


def _matrix_slots(name: str, layer: ExpertLinear, *, alternating: bool) -> dict[str, WeightSlot]:
    """Slots of one kind of matrix of all experts, of which ranks share the outputs where these
    alternate, else the inputs."""
    method = layer.method
    if isinstance(method, Mxfp4Experts):
        dim = 1 if alternating else 2
        packed = method.packed(layer, alternating=alternating)
        return {f"{name}{each.suffix}": _slot(each.target, dim, each.store) for each in packed}
    # Inputs come before outputs in a plain checkpoint.
    target = layer.matrices.data.transpose(1, 2)
    if alternating:
        return {name: _slot(target, 2, _halved(target, 2))}
    return {name: _slot(target, 1, None)}


def _slot(
    target: torch.Tensor, dim: int, store: Callable[[torch.Tensor], None] | None
) -> WeightSlot:
    """A tensor of which every rank has an equal part along `dim`."""
    ranks, shape = tensor_parallel(), list(target.shape)
    start = ranks.rank * shape[dim]
    shape[dim] *= ranks.size
    # All of it is one run of the file's bytes.
    shard = WeightShard(target, dim if ranks.size > 1 else 0, start, store)
    return WeightSlot(tuple(shape), (shard,))


def _halved(target: torch.Tensor, dim: int) -> Callable[[torch.Tensor], None]:
    """Put gates, which alternate with ups along `dim`, before them."""

    def store(read: torch.Tensor) -> None:
        alternating = read.movedim(dim, 0)
        gate, up = target.chunk(2, dim)
        gate.copy_(alternating[::2].movedim(0, dim))
        up.copy_(alternating[1::2].movedim(0, dim))

    return store


def _product(
    layer: ExpertLinear, x: torch.Tensor, expert: int, biases: torch.Tensor | None
) -> torch.Tensor:
    bias = None if biases is None else biases[expert]
    return layer.method.apply(layer, x, bias, rows=layer.rows_of(expert))


def _matrices(layer: ExpertLinear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What the kernels multiply by: matrices, and scales of quantised ones."""
    if isinstance(layer.method, Mxfp4Experts):
        return layer.weight.data, layer.weight_scale.data
    return layer.matrices, None
