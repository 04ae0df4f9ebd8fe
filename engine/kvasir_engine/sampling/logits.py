"""Changes to logits before a token is chosen: masks, biases, penalties, then top-k/p and min-p."""

from __future__ import annotations

import torch
from torch import Tensor

from kvasir_engine.grammar.matcher import MASK_BITS
from kvasir_engine.sampling.row_tokens import TokenLists

CHUNK_BYTES = 64 << 20
"""Logits worked on at once; temporaries are a few times that."""

_FIXED_POINT = 2.0**40


def chunk_rows(vocab_size: int) -> int:
    """Rows of fp32 logits that fit into CHUNK_BYTES, at least one."""
    return max(1, CHUNK_BYTES // (4 * vocab_size))


def keep_allowed(logits: Tensor, allowed: TokenLists) -> None:
    """Ban every token that is not in the entry's list, in place."""
    flat = logits.view(-1)
    kept = flat.index_select(0, allowed.flat)
    logits.index_fill_(0, allowed.entries, -torch.inf)
    flat.index_copy_(0, allowed.flat, kept)


def ban_where(logits: Tensor, tokens: TokenLists, banned: Tensor) -> None:
    """Ban each token whose `banned` [n] is true, in place.

    Adding -inf or 0 lets one entry name a token twice, in any order.
    """
    logits.view(-1).scatter_add_(0, tokens.flat, torch.where(banned, -torch.inf, 0.0))


def ban_unset(logits: Tensor, entries: Tensor, masks: Tensor) -> None:
    """Ban the tokens whose bit is not set in an entry's mask, in place.

    `entries` int64 [n]: the rows of `logits` that `masks` int32 [n, words] are of.
    """
    bits = torch.arange(MASK_BITS, dtype=torch.int32, device=masks.device)
    step = chunk_rows(logits.shape[1])
    for start in range(0, len(entries), step):
        part = masks[start : start + step]
        unset = ((part.unsqueeze(2) >> bits) & 1 == 0).view(len(part), -1)[:, : logits.shape[1]]
        index = entries[start : start + step]
        logits.index_copy_(0, index, logits[index].masked_fill_(unset, -torch.inf))


def ends_with(history: Tensor, rows: Tensor, lengths: Tensor, prefixes: Tensor) -> Tensor:
    """Return whether the first lengths[i] tokens of history[rows[i]] end with prefixes[i], bool
    [n].

    `history` int [max_rows, max_len]; `prefixes` [n, longest], padded on the left by -1, which
    matches anything.
    """
    longest = prefixes.shape[1]
    at = lengths.unsqueeze(1) - longest + torch.arange(longest, device=lengths.device)
    found = history[rows.unsqueeze(1), at.clamp_min(0)]
    return (((found == prefixes) & (at >= 0)) | (prefixes < 0)).all(dim=1)


def mask_min_p(logits: Tensor, min_p: Tensor) -> Tensor:
    """Ban tokens less probable than min_p [n, 1] times the most probable one (HF's MinP)."""
    probabilities = logits.softmax(-1)
    floor = min_p * probabilities.amax(-1, keepdim=True)
    return logits.masked_fill(probabilities < floor, -torch.inf)


def mask_top_k(logits: Tensor, top_k: Tensor, largest: int) -> Tensor:
    """Ban tokens below the top_k-th value (int64 [n, 1], at most `largest`); ties are kept."""
    kth = logits.topk(largest, dim=-1).values.gather(1, top_k - 1)
    return logits.masked_fill(logits < kth, -torch.inf)


def mask_top_k_top_p(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`mask_top_k`, then keep the smallest set of likeliest tokens whose mass reaches top_p [n, 1].

    As HF's TopP: sorted upwards, tokens go while their cumulative probability is at most
    1 - top_p; the likeliest always stays. Probabilities are summed as integers, because
    the order of a floating-point scan, and so its rounding, depends on the batch's size.
    """
    ordered, order = logits.sort(dim=-1, stable=True)
    kth = ordered.gather(1, ordered.shape[1] - top_k)
    ordered.masked_fill_(ordered < kth, -torch.inf)
    mass = (ordered.softmax(-1) * _FIXED_POINT).to(torch.int64).cumsum_(-1)
    removed = mass <= ((1.0 - top_p) * _FIXED_POINT).to(torch.int64)
    removed[:, -1] = False
    ordered.masked_fill_(removed, -torch.inf)
    return torch.empty_like(logits).scatter_(1, order, ordered)
