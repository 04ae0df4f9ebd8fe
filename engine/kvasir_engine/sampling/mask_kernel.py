"""Masks of grammars on logits: only the logits of tokens that may not follow are written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options
from kvasir_engine.grammar.matcher import MASK_BITS

TOKENS = 4096
"""Tokens a program."""


@triton.jit
def _ban(
    logits_ptr,
    entries_ptr,
    masks_ptr,
    stride,
    words,
    vocab_size,
    MASK_BITS: tl.constexpr,
    TOKENS: tl.constexpr,
    PDL: tl.constexpr,
):
    mask_row, part = tl.program_id(0), tl.program_id(1)
    begin(PDL)
    entry = tl.load(entries_ptr + mask_row)
    token = part * TOKENS + tl.arange(0, TOKENS)
    inside = token < vocab_size
    word = tl.load(masks_ptr + mask_row * words + token // MASK_BITS, mask=inside, other=0)
    banned = ((word >> (token % MASK_BITS)) & 1) == 0
    at = logits_ptr + entry * stride + token
    tl.store(at, float("-inf"), mask=inside & banned)


def ban_unset(logits: torch.Tensor, entries: torch.Tensor, masks: torch.Tensor) -> None:
    """`logits.ban_unset` for logits of any float type [m, vocab]."""
    vocab_size = logits.shape[1]
    _ban[(len(entries), triton.cdiv(vocab_size, TOKENS))](
        logits,
        entries,
        masks,
        logits.stride(0),
        masks.shape[1],
        vocab_size,
        MASK_BITS=MASK_BITS,
        TOKENS=TOKENS,
        **launch_options(logits.device),
    )
