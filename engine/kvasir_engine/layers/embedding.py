"""Token embedding and output projection, sharded along the vocabulary."""

from __future__ import annotations

import torch
from torch import nn

from kvasir_engine.device.collectives import all_gather, all_reduce, tensor_parallel
from kvasir_engine.device.vocab_shard import ALIGNED_TOKENS, VocabShard
from kvasir_engine.layers.weights import WeightShard, WeightSlot, parameter
from kvasir_engine.quantization.plain import linear


class VocabParallelEmbedding(nn.Module):
    """Table of tokens, to embed them or as a model's head, of which each rank holds
    ceil(vocab_size / ranks) rows, zero past the end."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        tp = tensor_parallel()
        self.vocab_size = vocab_size
        rows = -(-vocab_size // tp.size)
        self.first = tp.rank * rows
        self.weight = parameter(rows, hidden_size)
        self.weight.data[self._rows_in_checkpoint() :] = 0

    def _rows_in_checkpoint(self) -> int:
        return max(0, min(self.weight.shape[0], self.vocab_size - self.first))

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Map token ids [tokens] to [tokens, hidden_size]."""
        if tensor_parallel().size == 1:
            return nn.functional.embedding(token_ids, self.weight)
        local = token_ids - self.first
        elsewhere = (local < 0) | (local >= self.weight.shape[0])
        rows = nn.functional.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return all_reduce(rows.masked_fill(elsewhere[:, None], 0))

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [n, hidden_size] to logits [n, vocab_size], gathered over ranks."""
        return self.gathered(self.project_shard(hidden))

    def project_shard(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [n, hidden_size] to this rank's logits [n, rows]; see `shard`."""
        return linear(hidden, self.weight, None)

    def gathered(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, vocab_size] of all ranks."""
        return all_gather(logits)[..., : self.vocab_size]

    @property
    def shard(self) -> VocabShard | None:
        """Tokens of this rank's logits; None for a whole vocabulary, and for shards that cannot be
        sampled by themselves."""
        if tensor_parallel().size == 1 or self.weight.shape[0] % ALIGNED_TOKENS:
            return None
        return VocabShard(self.first, self._rows_in_checkpoint())

    def slots(self, path: str) -> dict[str, WeightSlot]:
        """Return the slot of this rank's rows, as far as the vocabulary goes."""
        target = self.weight.data[: self._rows_in_checkpoint()]
        shape = (self.vocab_size, self.weight.shape[1])
        shards = (WeightShard(target, 0, self.first),) if target.shape[0] else ()
        return {f"{path}.weight": WeightSlot(shape, shards)}
