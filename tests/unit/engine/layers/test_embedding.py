"""The vocabulary's shards: together they are the whole table, for ids and for logits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kvasir_engine.device import collectives
from kvasir_engine.device.vocab_shard import VocabShard
from kvasir_engine.layers import embedding
from kvasir_engine.layers.embedding import VocabParallelEmbedding

VOCAB, HIDDEN = 11, 4


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[VocabParallelEmbedding]]:
    """shards(kind, ranks): one layer a rank, all filled from the table; ranks do not talk."""

    def make(kind: type[VocabParallelEmbedding], ranks: int) -> list[VocabParallelEmbedding]:
        layers = []
        for rank in range(ranks):
            monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(rank, ranks))
            layer = kind(VOCAB, HIDDEN)
            for shard in layer.slots("table")["table.weight"].shards:
                shard.target.copy_(table()[shard.start : shard.stop])
            layers.append(layer)
        return layers

    monkeypatch.setattr(embedding, "all_reduce", lambda x: x)
    monkeypatch.setattr(embedding, "all_gather", lambda x: x)
    return make


def table() -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_ranks_rows_add_up_to_the_tables(shards, ranks: int) -> None:
    """With 8 ranks of 2 rows the last two hold nothing of the vocabulary."""
    layers = shards(VocabParallelEmbedding, ranks)
    ids = torch.tensor([0, 10, 5, 5, 3])
    assert torch.equal(torch.stack([layer(ids) for layer in layers]).sum(0), table()[ids])
    of_each = torch.stack([layer(torch.arange(VOCAB)).any(-1) for layer in layers])
    assert of_each.sum(0).tolist() == [1] * VOCAB


@pytest.mark.parametrize("ranks", [1, 3])
def test_logits_of_all_ranks_are_cut_to_the_vocabulary(
    shards, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(1))
    heads = shards(VocabParallelEmbedding, ranks)
    own = [hidden @ head.weight.T for head in heads]
    monkeypatch.setattr(embedding, "all_gather", lambda _: torch.cat(own, -1))
    logits = heads[0].project(hidden)
    expected = (hidden.double() @ table().double().T).float()
    torch.testing.assert_close(logits, expected)


def test_a_shard_that_begins_within_a_block_of_noise_is_not_sampled_alone(
    shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = shards(VocabParallelEmbedding, 1)
    assert whole.shard is None
    assert shards(VocabParallelEmbedding, 2)[1].shard is None
    monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(1, 3))
    assert VocabParallelEmbedding(11, HIDDEN).shard == VocabShard(4, 4)
    monkeypatch.setattr(collectives, "_current", collectives.TensorParallel(2, 3))
    assert VocabParallelEmbedding(11, HIDDEN).shard == VocabShard(8, 3)
