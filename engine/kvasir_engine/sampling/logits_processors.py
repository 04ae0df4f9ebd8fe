"""Call a request's logits processors, and check what they return."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvasir_engine.sampling_params import LogitsProcessor

BANNED = -1e9
"""Bias of a token that a processor bans by -inf: finite, so that what a grammar or a budget leaves
as the only token can be sampled all the same."""


class BiasError(ValueError):
    """A processor returned no bias; the message is one sentence that says what is wrong."""


def bias_of(
    processors: Sequence[LogitsProcessor],
    prompt_ids: list[int],
    output_ids: list[int],
    vocab_size: int,
) -> Tensor:
    """Return the sum of the processors' biases, float32 [vocab], on the device of the first.

    Each is called with lists of its own, and what it returns may be used again. Raises BiasError,
    or what a processor raises.
    """
    biases = [
        _checked(processor(list(prompt_ids), list(output_ids)), vocab_size)
        for processor in processors
    ]
    total = torch.zeros_like(biases[0])
    for bias in biases:
        total += bias.to(total.device)
    best, total = total.max(), total.clamp(min=BANNED)
    # Looked at last: on a GPU this waits until all of the bias is computed.
    if not math.isfinite(best):
        raise BiasError("biases must be finite or -inf, and may not ban every token.")
    return total


def _checked(bias: Any, vocab_size: int) -> Tensor:
    wanted = f"a torch tensor of float32 [{vocab_size}], as long as the vocabulary"
    if not isinstance(bias, Tensor):
        raise BiasError(f"a processor must return {wanted}, got {type(bias).__name__}.")
    if bias.dtype != torch.float32 or bias.shape != (vocab_size,):
        kind = str(bias.dtype).removeprefix("torch.")
        raise BiasError(f"a processor must return {wanted}, got {kind} {list(bias.shape)}.")
    return bias.detach()
