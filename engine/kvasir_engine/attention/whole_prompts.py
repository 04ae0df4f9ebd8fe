"""Attention of whole prompts, whose keys are all at hand, by cuDNN.

Its causal kernel is half as fast again as one that reads keys from the paged cache. It makes a plan
for every length it meets, which takes tens of milliseconds, so there are few: a prompt is computed
as if it went on for a little, since a causal token sees nothing of what lies behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from kvasir_engine.attention.base import AttentionBatch, AttentionSpec, LayerBuffers

log = logging.getLogger(__name__)

STEP = LayerBuffers.BEHIND // 2
LEAST_TOKENS = 1024
"""Of a prompt: shorter ones the paged kernel computes together, and one alone as fast."""
MOST_HEAD_DIM = 128

FINE_TOKENS = 2048
"""Prompts are computed as if they ended at a multiple of STEP, longer ones of twice that."""

CausalAttention: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor
]
"""Of q [1, heads, n, head_dim], k and v [1, kv_heads, n, head_dim] and a scale; like q."""


def by_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """CausalAttention."""
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, False, 0.0, True, False, scale=scale
    )[0]
    return out


def cudnn_attention(device: torch.device) -> CausalAttention | None:
    """`by_cudnn` where the GPU and torch have it: compute capability 9.0, where it is fast."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return None
    if not torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
        return None
    q = torch.zeros(1, 2, STEP, 128, dtype=torch.bfloat16, device=device)
    try:
        by_cudnn(q, q[:, :1], q[:, :1], 1.0)
    except RuntimeError as error:
        log.warning("cuDNN has no attention here, prompts take longer: %s", error)
        return None
    return by_cudnn


@dataclass(frozen=True, slots=True)
class Prompt:
    """One of a step's entries."""

    entry: int
    begin: int
    """Its first token."""
    tokens: int


def whole_prompts(batch: AttentionBatch) -> list[Prompt]:
    """Prompts without cached context that are worth it."""
    found: list[Prompt] = []
    begin = batch.num_decodes
    for entry in range(batch.num_decodes, len(batch.query_lens_cpu)):
        tokens = batch.query_lens_cpu[entry]
        if batch.seq_lens_cpu[entry] == tokens >= LEAST_TOKENS:
            found.append(Prompt(entry, begin, tokens))
        begin += tokens
    return found


def takes(spec: AttentionSpec, dtype: torch.dtype) -> bool:
    """Whether cuDNN computes such a layer."""
    return (
        spec.window is None
        and not spec.softcap
        and spec.causal
        and spec.head_dim <= MOST_HEAD_DIM
        and spec.head_dim % 8 == 0
        and dtype in (torch.float16, torch.bfloat16)
    )


def padded(tokens: int) -> int:
    """The length that a prompt is computed with."""
    step = STEP if tokens <= FINE_TOKENS else 2 * STEP
    return -(-tokens // step) * step


def padded_lengths(most: int) -> list[int]:
    """All of them, for prompts of at most `most` tokens."""
    return sorted({padded(tokens) for tokens in range(LEAST_TOKENS, most + 1)})


class PromptViews:
    """A prompt's queries, keys and values in the buffers, as cuDNN takes them; all layers of a
    step have the same."""

    def __init__(self, prompt: Prompt, spec: AttentionSpec, buffers: LayerBuffers) -> None:
        whole = slice(prompt.begin, prompt.begin + padded(prompt.tokens))

        def heads_first(part: torch.Tensor) -> torch.Tensor:
            return part[whole].transpose(0, 1).unsqueeze(0)

        self._q = heads_first(buffers.queries(spec))
        self._k, self._v = heads_first(buffers.keys(spec)), heads_first(buffers.values(spec))
        self._scale = spec.scale
        self._own = slice(prompt.begin, prompt.begin + prompt.tokens)
        self._tokens = prompt.tokens

    def attend(self, attention: CausalAttention, out: torch.Tensor) -> None:
        """Into the prompt's part of out [step's tokens, heads, head_dim]."""
        found = attention(self._q, self._k, self._v, self._scale)
        out[self._own].copy_(found[0].transpose(0, 1)[: self._tokens])


def make_plans(attention: CausalAttention, spec: AttentionSpec, buffers: LayerBuffers) -> None:
    """One for each length there is, since the first prompt of a length would wait for its own."""
    out = torch.empty_like(buffers.queries(spec))
    for tokens in padded_lengths(buffers.tokens):
        PromptViews(Prompt(0, 0, min(tokens, buffers.tokens)), spec, buffers).attend(attention, out)
