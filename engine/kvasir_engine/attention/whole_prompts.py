"""Attention of whole prompts, whose keys are all at hand, by cuDNN.

Its causal kernel is half as fast again as one that reads keys from the paged cache. It makes a plan
for every length it meets, which takes tens of milliseconds, so a prompt is computed as if it ended
at the next multiple of STEP: a causal token sees nothing of what lies behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from kvasir_engine.attention.base import AttentionBatch, AttentionSpec, LayerBuffers

log = logging.getLogger(__name__)

STEP = LayerBuffers.BEHIND
LEAST_TOKENS = 1024
"""Of a prompt among others, which the paged kernel computes together."""
LEAST_TOKENS_ALONE = 384
MOST_HEAD_DIM = 128

CausalAttention: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor
]
"""Of q [prompts, heads, n, head_dim], k and v [prompts, kv_heads, n, head_dim] and a scale; like
q."""


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
class Prompts:
    """Prompts of one length, one after the other in a step."""

    entries: tuple[int, ...]
    begin: int
    """Their first token."""
    tokens: int
    """Of each."""


def whole_prompts(batch: AttentionBatch) -> list[Prompts]:
    """Prompts without cached context that are worth it.

    Several are together where each ends at a multiple of STEP.
    """
    alone = len(batch.query_lens_cpu) - batch.num_decodes == 1
    least = LEAST_TOKENS_ALONE if alone else LEAST_TOKENS
    found: list[Prompts] = []
    begin = batch.num_decodes
    lengths = list(zip(batch.query_lens_cpu, batch.seq_lens_cpu, strict=True))
    for entry in range(batch.num_decodes, len(lengths)):
        new, bound = lengths[entry]
        if bound == new and new >= least:
            last = found[-1] if found else None
            if last and not new % STEP and _goes_on(last, begin, new):
                found[-1] = Prompts((*last.entries, entry), last.begin, new)
            else:
                found.append(Prompts((entry,), begin, new))
        begin += new
    return found


def _goes_on(last: Prompts, begin: int, tokens: int) -> bool:
    return last.tokens == tokens and last.begin + len(last.entries) * tokens == begin


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


class PromptViews:
    """Some prompts' queries, keys and values in the buffers, as cuDNN takes them; all layers of a
    step have the same."""

    def __init__(self, prompts: Prompts, spec: AttentionSpec, buffers: LayerBuffers) -> None:
        count, tokens = len(prompts.entries), prompts.tokens
        padded = -(-tokens // STEP) * STEP
        whole = slice(prompts.begin, prompts.begin + count * padded)

        def heads_first(part: torch.Tensor) -> torch.Tensor:
            return part[whole].view(count, padded, *part.shape[1:]).transpose(1, 2)

        self._q = heads_first(buffers.queries(spec))
        self._k, self._v = heads_first(buffers.keys(spec)), heads_first(buffers.values(spec))
        self._scale = spec.scale
        self._own = slice(prompts.begin, prompts.begin + count * tokens)
        self._tokens = tokens

    def attend(self, attention: CausalAttention, out: torch.Tensor) -> None:
        """Into the prompts' part of out [step's tokens, heads, head_dim]."""
        found = attention(self._q, self._k, self._v, self._scale).transpose(1, 2)[:, : self._tokens]
        out[self._own].copy_(found.flatten(0, 1))
