"""Whole prompts beside decodes and later chunks; cuDNN itself where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from kvasir_engine.attention import whole_prompts
from kvasir_engine.attention.base import AttentionSpec, LayerBuffers
from kvasir_engine.attention.whole_prompts import Prompt

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32


def by_torch(q, k, v, scale):
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True, scale=scale
    )


@pytest.fixture
def attention() -> whole_prompts.CausalAttention:
    return whole_prompts.cudnn_attention(DEVICE) or by_torch


def attend(attention, spec, buffers, prompt, out) -> None:
    whole_prompts.PromptViews(prompt, spec, buffers).attend(attention, out)


def filled(spec: AttentionSpec, tokens: int) -> LayerBuffers:
    torch.manual_seed(0)
    buffers = LayerBuffers([spec], tokens, DTYPE, DEVICE)
    for part in (buffers.queries(spec), buffers.keys(spec), buffers.values(spec)):
        part.copy_(torch.randn(part.shape))
    return buffers


@pytest.mark.parametrize("heads", [(4, 2), (2, 2), (3, 1)])
def test_a_prompt_among_others(attention, heads) -> None:
    spec = AttentionSpec(0, *heads, 64, 0.2)
    begin, tokens = 7, 300
    buffers = filled(spec, 512)
    out = torch.full((512, heads[0], 64), float("nan"), dtype=DTYPE, device=DEVICE)
    attend(attention, spec, buffers, whole_prompts.Prompt(1, begin, tokens), out)
    own = slice(begin, begin + tokens)
    q, k, v = (
        part[own].double().cpu().transpose(0, 1)[None]
        for part in (buffers.queries(spec), buffers.keys(spec), buffers.values(spec))
    )
    want = by_torch(q, k, v, spec.scale)[0].transpose(0, 1)
    tolerance = 1e-5 if DEVICE.type == "cpu" else 3e-2
    torch.testing.assert_close(out[own].double().cpu(), want, atol=tolerance, rtol=tolerance)
    assert torch.isnan(out[:begin]).all()
    assert torch.isnan(out[begin + tokens :]).all()


def test_the_last_prompt_ends_within_the_buffers(attention) -> None:
    spec = AttentionSpec(0, 2, 1, 64, 0.2)
    buffers = filled(spec, 300)
    out = torch.empty(300, 2, 64, dtype=DTYPE, device=DEVICE)
    attend(attention, spec, buffers, whole_prompts.Prompt(0, 43, 257), out)
    assert torch.isfinite(out[43:]).all()


def test_only_long_prompts_without_cached_context(paged) -> None:
    batch, _ = paged.make_batch([5], [(1024, 1024), (1023, 1023), (1500, 1600), (2000, 2000)], 0)
    first, other = Prompt(1, 1, 1024), Prompt(4, 1 + 1024 + 1023 + 1500, 2000)
    assert whole_prompts.whole_prompts(batch) == [first, other]


@pytest.mark.parametrize("most", [1024, 1300, 8192])
def test_few_lengths_hold_any_prompt(most) -> None:
    lengths = whole_prompts.padded_lengths(most)
    assert len(lengths) <= 22
    for tokens in range(whole_prompts.LEAST_TOKENS, most + 1):
        assert whole_prompts.padded(tokens) in lengths
        assert 0 <= whole_prompts.padded(tokens) - tokens < LayerBuffers.BEHIND


def test_a_plan_for_each_length() -> None:
    seen = []

    def note(q, k, v, scale):
        seen.append(q.shape[2])
        return q

    spec = AttentionSpec(0, 2, 1, 64, 0.2)
    whole_prompts.make_plans(note, spec, LayerBuffers([spec], 1280, DTYPE, DEVICE))
    assert seen == [1024, 1280]


@pytest.mark.parametrize(
    "changed", [{"window": 8}, {"softcap": 30.0}, {"head_dim": 256}, {"head_dim": 60}]
)
def test_layers_that_cudnn_does_not_compute(paged, changed) -> None:
    spec = AttentionSpec(0, 2, 1, **{"head_dim": 64, "scale": 0.2, **changed})
    assert not whole_prompts.takes(spec, torch.bfloat16)
    assert whole_prompts.takes(AttentionSpec(0, 2, 1, 64, 0.2), torch.bfloat16)
    assert not whole_prompts.takes(AttentionSpec(0, 2, 1, 64, 0.2), torch.float32)
