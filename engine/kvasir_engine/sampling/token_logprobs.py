"""Log-probabilities of raw logits: the chosen token's, its rank, and the most likely others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir_engine.sampling.logits import chunk_rows

MAX_PROMPT_ROWS = 256


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural log-probabilities of n positions, on the device.

    `values` fp32 [n] and `ranks` int32 [n] (1 = most likely) of the given tokens; `top_ids`
    int32 and `top_values` fp32 [n, top], most likely first.
    """

    values: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_values: Tensor


def token_logprobs(logits: Tensor, tokens: Tensor, top: int) -> Logprobs:
    """Log-probabilities of `tokens` (int64 [n]) under raw fp32 logits [n, vocab]."""
    rows = chunk_rows(logits.shape[1])
    parts = [
        _of_chunk(logits[start : start + rows], tokens[start : start + rows], top)
        for start in range(0, logits.shape[0], rows)
    ]
    return _join(parts)


def prompt_logprobs(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    tokens: Tensor,
    *,
    vocab_size: int,
    top: int,
) -> Logprobs:
    """Log-probabilities of prompt tokens (int64 [n]) given the hidden states [n, size] before them.

    `head` maps hidden states to fp32 logits [rows, vocab_size]; it sees a bounded number of rows
    at a time, so that memory does not grow with the prompt. n must be at least 1.
    """
    rows = min(MAX_PROMPT_ROWS, chunk_rows(vocab_size))
    parts = [
        _of_chunk(head(hidden[start : start + rows]), tokens[start : start + rows], top)
        for start in range(0, hidden.shape[0], rows)
    ]
    return _join(parts)


def _of_chunk(logits: Tensor, tokens: Tensor, top: int) -> Logprobs:
    target = tokens.unsqueeze(1)
    logprobs = logits.log_softmax(-1)
    ranks = (logits > logits.gather(1, target)).sum(-1, dtype=torch.int32) + 1
    top_ids = logits.topk(min(top, logits.shape[1]), dim=-1).indices
    return Logprobs(
        values=logprobs.gather(1, target).squeeze(1),
        ranks=ranks,
        top_ids=top_ids.to(torch.int32),
        top_values=logprobs.gather(1, top_ids),
    )


def _join(parts: list[Logprobs]) -> Logprobs:
    if len(parts) == 1:
        return parts[0]
    return Logprobs(
        values=torch.cat([part.values for part in parts]),
        ranks=torch.cat([part.ranks for part in parts]),
        top_ids=torch.cat([part.top_ids for part in parts]),
        top_values=torch.cat([part.top_values for part in parts]),
    )
