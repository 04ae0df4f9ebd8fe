"""Interface of a model, as the runner uses it."""

from __future__ import annotations

from typing import Protocol

import torch

from kvasir_engine.attention.base import AttentionSpec
from kvasir_engine.device.vocab_shard import VocabShard


class CausalLM(Protocol):
    """A decoder over flattened batches; its attention layers read the step's ForwardContext."""

    attention_specs: list[AttentionSpec]
    """One an attention layer, in layer order; each names the layout of its cache."""

    @property
    def graph_safe(self) -> bool:
        """True if the forward pass only launches kernels, whose shapes depend on the number of
        tokens alone: then it can be captured as a CUDA graph."""
        ...

    def __call__(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Final hidden states [tokens, hidden_size] of int64 token_ids and positions [tokens]."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab_size], of the model's type or fp32, of hidden states [n, hidden_size];
        the same on every rank."""
        ...

    @property
    def vocab_shard(self) -> VocabShard | None:
        """Tokens that `shard_logits` covers; None where only `logits` can be sampled from."""
        ...

    def shard_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, >= vocab_shard.count] of this rank's part of the vocabulary."""
        ...
