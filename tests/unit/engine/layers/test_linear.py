"""What each rank keeps of a sharded layer's checkpoint tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvasir_engine.device import collectives
from kvasir_engine.layers.block_output import BlockOutput
from kvasir_engine.layers.embedding import VocabParallelEmbedding
from kvasir_engine.layers.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    even_part,
    local_heads,
    qkv_parts,
)
from kvasir_engine.layers.moe import ExpertNames, MoE, MoEConfig
from kvasir_engine.layers.weights import WeightSlot


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """as_rank(rank, size): layers made from now on are that rank's."""

    def set_rank(rank: int, size: int) -> None:
        monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank, size))

    return set_rank


def ranges(slot: WeightSlot) -> list[tuple[int, int, int]]:
    """(dimension, start, stop) of each shard."""
    return [(shard.dim, shard.start, shard.stop) for shard in slot.shards]


def test_merged_parts_are_tensors_beside_the_layer(as_rank) -> None:
    as_rank(1, 2)
    layer = ColumnParallelLinear(3, (even_part("gate_proj", 8), even_part("up_proj", 8)), bias=True)
    slots = layer.slots("model.mlp.gate_up_proj")
    assert layer.weight.shape == (8, 3)
    assert {name: (slot.shape, ranges(slot)) for name, slot in slots.items()} == {
        "model.mlp.gate_proj.weight": ((8, 3), [(0, 4, 8)]),
        "model.mlp.up_proj.weight": ((8, 3), [(0, 4, 8)]),
        "model.mlp.gate_proj.bias": ((8,), [(0, 4, 8)]),
        "model.mlp.up_proj.bias": ((8,), [(0, 4, 8)]),
    }


def test_fused_parts_are_pieces_of_one_tensor(as_rank) -> None:
    as_rank(1, 2)
    layer = ColumnParallelLinear(3, qkv_parts(4, 2, 5), fused=True)
    assert layer.slots("attn.qkv_proj").keys() == {"attn.qkv_proj.weight"}
    slot = layer.slots("attn.qkv_proj")["attn.qkv_proj.weight"]
    assert slot.shape == (40, 3)
    assert ranges(slot) == [(0, 10, 20), (0, 25, 30), (0, 35, 40)]
    for shard in slot.shards:
        shard.target.fill_(shard.start)
    assert layer.weight[:, 0].tolist() == [10] * 10 + [25] * 5 + [35] * 5


@pytest.mark.parametrize(
    ("rank", "size", "kv_heads", "start"),
    [(0, 4, 2, 0), (1, 4, 2, 0), (2, 4, 2, 1), (3, 4, 2, 1), (3, 4, 1, 0), (3, 4, 8, 6)],
)
def test_kv_heads_are_shared_by_neighbouring_ranks(as_rank, rank, size, kv_heads, start) -> None:
    as_rank(rank, size)
    _, key, value = qkv_parts(8, kv_heads, 3)
    assert local_heads(8, kv_heads) == (2, max(1, kv_heads // size))
    assert key.start == value.start == 3 * start
    assert key.size == 3 * kv_heads


@pytest.mark.parametrize(
    ("size", "heads", "kv_heads", "field"),
    [(3, 4, 4, "num_attention_heads"), (3, 6, 2, "replicated"), (2, 4, 3, "num_key_value_heads")],
)
def test_heads_that_do_not_divide(as_rank, size, heads, kv_heads, field) -> None:
    as_rank(0, size)
    with pytest.raises(ValueError, match=f"{field}.*tensor-parallel-size"):
        local_heads(heads, kv_heads)


def test_rows_are_sharded_along_the_input_and_the_bias_added_once(as_rank) -> None:
    x = torch.randn(2, 6)
    weight, bias = torch.randn(4, 6), torch.randn(4)
    total = torch.zeros(2, 4)
    for rank in range(2):
        as_rank(rank, 2)
        layer = RowParallelLinear(6, 4, bias=True)
        slots = layer.slots("o_proj")
        assert ranges(slots["o_proj.weight"]) == [(1, 3 * rank, 3 * rank + 3)]
        layer.weight.data.copy_(weight[:, 3 * rank : 3 * rank + 3])
        layer.bias.data.copy_(bias)
        as_rank(rank, 1)  # no collective: the ranks' shares are summed here
        total += layer(x[:, 3 * rank : 3 * rank + 3])
    torch.testing.assert_close(total, x @ weight.T + bias)


def test_vocabulary_is_padded_with_zeros(as_rank) -> None:
    kept = []
    for rank in range(4):
        as_rank(rank, 4)
        table = VocabParallelEmbedding(5, 3)
        slot = table.slots("embed")["embed.weight"]
        assert slot.shape == (5, 3)
        assert table.weight.shape == (2, 3)
        kept += ranges(slot)
        for shard in slot.shards:
            shard.target.fill_(1)
        assert table.weight.sum() == 3 * sum(stop - start for _, start, stop in ranges(slot))
    assert kept == [(0, 0, 2), (0, 2, 4), (0, 4, 5)]


def test_head_gives_the_vocabulary_without_padding() -> None:
    head = VocabParallelEmbedding(5, 3)
    head.weight.data.normal_()
    hidden = torch.randn(2, 3)
    torch.testing.assert_close(head.project(hidden), hidden @ head.weight.T)


def test_experts_are_sharded_as_gated_mlps_are(as_rank) -> None:
    as_rank(1, 2)
    names = ExpertNames(block="moe", gate="w1", up="w3", down="w2")
    layer = MoE(MoEConfig(4, 6, 2, 1, "silu", normalise=True, names=names))
    slots = layer.slots("layers.0.mlp")
    assert len(slots) == 1 + 2 * 3
    assert slots["layers.0.moe.gate.weight"].shape == (2, 4)
    assert slots["layers.0.moe.experts.1.w2.weight"].shape == (4, 6)
    assert ranges(slots["layers.0.moe.experts.1.w1.weight"]) == [(0, 3, 6)]
    assert ranges(slots["layers.0.moe.experts.1.w3.weight"]) == [(0, 3, 6)]
    assert ranges(slots["layers.0.moe.experts.1.w2.weight"]) == [(1, 3, 6)]
    for value, matrix in enumerate(("w1", "w3")):
        slots[f"layers.0.moe.experts.1.{matrix}.weight"].shards[0].target.fill_(value)
    assert layer.gate_up.matrices[1, :, 0].tolist() == [0, 0, 0, 1, 1, 1]


class Sums:
    """A communicator whose kernels sum up to `most` bytes while they norm."""

    def __init__(self, most: int) -> None:
        self.most, self.summed = most, 0

    def one_shot_sum(self, num_bytes: int, dtype: torch.dtype) -> Sums | None:
        assert dtype == torch.float32
        return self if num_bytes <= self.most else None

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.summed += 1
        return x


@pytest.mark.parametrize(("tokens", "later"), [(2, True), (3, False)])
def test_small_sums_over_ranks_are_left_to_the_next_norm(monkeypatch, tokens, later) -> None:
    sums: Any = Sums(most=2 * 6 * 4)
    monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(1, 2, sums))
    layer = RowParallelLinear(8, 6, bias=True)
    for each in layer.parameters():
        each.data.normal_()
    x = torch.randn(tokens, 4)

    out = layer(x)

    share = x @ layer.weight.t()
    if later:
        assert isinstance(out, BlockOutput)
        assert out.ranks is sums
        out = out.x
    torch.testing.assert_close(out, share)
    assert sums.summed == (not later)
