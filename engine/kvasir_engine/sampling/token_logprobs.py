"""Log-probabilities of raw logits: the chosen token's, its rank, and the most likely others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from kvasir_engine.device.capability import kernels_run_on
from kvasir_engine.sampling.logits import chunk_rows

MAX_PROMPT_ROWS = 256
MAX_KERNEL_TOP = 64
"""Alternatives beyond which torch's own operations are used: the kernel takes one after the
other."""


class Logprobs(NamedTuple):
    """Natural log-probabilities of n positions, on the device, named as TokenLogprobs names them.

    `logprobs` fp32 [n] and `ranks` int32 [n] (1 = most likely) of the given tokens; `top_ids`
    int32 and `top_logprobs` fp32 [n, top], most likely first.
    """

    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


def token_logprobs(logits: Tensor, tokens: Tensor, top: int) -> Logprobs:
    """Log-probabilities of `tokens` (int64 [n]) under raw logits [n, vocab], fp32 or, on a GPU that
    the kernels run on, of any float type."""
    if _by_kernel(logits, top):
        return _of_chunk(logits, tokens, top)
    rows = chunk_rows(logits.shape[1])
    return _of_chunks(torch.split(logits, rows), torch.split(tokens, rows), top)


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
    return _of_chunks(map(head, torch.split(hidden, rows)), torch.split(tokens, rows), top)


def _of_chunks(logits: Iterable[Tensor], tokens: Iterable[Tensor], top: int) -> Logprobs:
    parts = [_of_chunk(*chunk, top) for chunk in zip(logits, tokens, strict=True)]
    return parts[0] if len(parts) == 1 else Logprobs(*map(torch.cat, zip(*parts, strict=True)))


def _by_kernel(logits: Tensor, top: int) -> bool:
    return kernels_run_on(logits.device) and top <= MAX_KERNEL_TOP


def _of_chunk(logits: Tensor, tokens: Tensor, top: int) -> Logprobs:
    if _by_kernel(logits, top):
        # Not at the top: it imports triton, which the CPU does not need.
        from kvasir_engine.sampling.logprob_kernel import row_logprobs

        return Logprobs(*row_logprobs(logits, tokens, min(top, logits.shape[1])))
    target, logits = tokens.unsqueeze(1), logits.float()
    logprobs = logits.log_softmax(-1)
    ranks = (logits > logits.gather(1, target)).sum(-1, dtype=torch.int32) + 1
    top_ids = logits.topk(min(top, logits.shape[1]), dim=-1).indices
    return Logprobs(
        logprobs=logprobs.gather(1, target).squeeze(1),
        ranks=ranks,
        top_ids=top_ids.to(torch.int32),
        top_logprobs=logprobs.gather(1, top_ids),
    )
